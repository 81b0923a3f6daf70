"""Files that an earlier commit (d5e7936) wrote open today, with the same rows, neighbours, scores and predictions."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import actstore
from cli.actstore import main as actstore_main
from cli.ppa import main as ppa_main

pytestmark = pytest.mark.numeric

ARCHIVE = Path(__file__).parent / "data" / "earlier.tar.gz"
# name of the recorded answer -> the command that gave it
COMMANDS = {
    "query": "actstore query features.zarr --split train --class class03 --json",
    "search": "actstore search features.zarr --split train --vector queries.npy -k 5 --json",
    "search_bounded": "actstore search many.zarr --row 17 -k 5 --method bounded --json",
    "search_ivf": "actstore search many.zarr --row 17 -k 5 --method ivf-sq --json",
    "search_exact": "actstore search many.zarr --row 17 -k 5 --method exact --json",
    "predict": "ppa predict --store features.zarr --split val --top 3 --json",
    "categories": "ppa categories list --json",
    "eval": "ppa eval --store features.zarr --phi runs/phi2 --shots 1,3 --draws 3 --json",
    "verify": "actstore verify features.zarr --json",
    "verify_glyphs": "actstore verify glyphs.zarr --json",
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def run(command: str, folder: Path) -> Any:
    tool, *arguments = command.split()
    before = Path.cwd()
    os.chdir(folder)
    try:
        result = CliRunner().invoke(actstore_main if tool == "actstore" else ppa_main, arguments)
    finally:
        os.chdir(before)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def require_alike(now: Any, then: Any, where: str) -> None:
    """Everything the release said is still said, numbers to five digits: they are sums in float32."""
    if isinstance(then, dict):
        for key, value in then.items():
            if key.startswith("paper_"):
                continue  # since then they stand only beside as many categories as the paper has
            require_alike(now[key], value, f"{where}.{key}")
    elif isinstance(then, list):
        assert len(now) == len(then), where
        for position, value in enumerate(then):
            require_alike(now[position], value, f"{where}[{position}]")
    elif isinstance(then, float):
        assert now == pytest.approx(then, rel=1e-4, abs=1e-5), where
    elif where.endswith(".warning"):
        assert then in now, where  # more is warned of since then
    else:
        assert now == then, where


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_answer_as_before(release: Path, name: str) -> None:
    then = json.loads((release / "answers" / f"{name}.json").read_text())
    require_alike(run(COMMANDS[name], release), then, name)


def test_adapting_an_earlier_phi_predicts_as_before(release: Path) -> None:
    options = "--support-store features.zarr --support-split val --class class18 --class class19"
    run(f"ppa adapt --phi runs/phi2 --store features.zarr {options} --out second.safetensors --json", release)
    now = run(
        "ppa predict --classifier second.safetensors --store features.zarr --split train --rows 0:50 --top 3 --json",
        release,
    )
    require_alike(now, json.loads((release / "answers" / "predict_again.json").read_text()), "predict_again")


@pytest.mark.parametrize(("store", "split", "rows"), [("features", "train", "rows"), ("glyphs", "val", "glyph_rows")])
def test_rows_are_the_same_bits(release: Path, store: str, split: str, rows: str) -> None:
    expected = np.load(release / "answers" / f"{rows}.npy")
    np.testing.assert_array_equal(actstore.open(release / f"{store}.zarr")[split].take(range(len(expected))), expected)


def test_a_finished_training_of_the_release_is_found_finished(release: Path) -> None:
    before = (release / "runs/phi2/model.safetensors").read_bytes()
    run("ppa train --phi phi2 --store features.zarr --epochs 2 --batches 40 --out runs/phi2 --json", release)
    assert (release / "runs/phi2/model.safetensors").read_bytes() == before


def test_an_earlier_store_takes_more_rows(release: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.npy"
    np.save(more, np.ones((3, 16), np.float16))
    run(f"actstore append {more} features.zarr --split val --json", release)
    assert len(actstore.open(release / "features.zarr")["val"]) == 43
    assert run("actstore verify features.zarr --json", release)["faults"] == []


def test_images_still_go_through_the_earlier_network(release: Path) -> None:
    """The earlier weights, transform and layer give the earlier activations."""
    weights = "--backbone simple --weights backbone/best.safetensors"
    run(f"actstore build glyphs:10x6x3 again.zarr {weights} --workers 0 --json", release)
    expected = np.load(release / "answers" / "glyph_rows.npy").astype(np.float64)
    again = actstore.open(release / "again.zarr")["val"].take(range(30)).astype(np.float64)
    assert np.abs(again - expected).max() <= 2e-3 * np.abs(expected).max()  # float16, another order of sums

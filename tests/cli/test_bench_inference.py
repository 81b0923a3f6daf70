from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from cli.ppa import main

QUICK = ("--seconds", "0.01", "--backbone", "none", "--batch", "2", "--threads", "1")


@pytest.fixture(autouse=True)
def _nothing_is_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_generated_rows(tmp_path: Path) -> None:
    chart, out = tmp_path / "bars.png", tmp_path / "bench.json"
    done = run("bench-inference", "--synthetic", "2000x64", *QUICK, "--chart", chart, "--out", out)
    assert done.exit_code == 0, done.output
    for name in ("parametric classifier", "as the paper has it", "fp16 rows", "bounded", "approximate", "IndexFlatIP",
                 "37.867", "45 GB", "Peak memory"):  # fmt: skip
        assert name in done.output
    assert chart.exists()
    assert {"name", "value", "unit", "peer", "peer_value", "ratio"} <= set(json.loads(out.read_text())[0])


@pytest.mark.parametrize("ending", [".md", ".csv"])
def test_a_table_is_written_by_its_ending_and_may_be_replaced(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"table{ending}"
    for force in ([], ["--force"]):
        done = run("bench-inference", "--synthetic", "2000x64", *QUICK, "--approximate", "none", "--out", out, *force)
        assert done.exit_code == 0, done.output
    assert "as the paper has it" in out.read_text()
    assert "ms/image" in out.read_text()


def test_without_a_store_rows_are_generated_at_a_size_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACTSTORE", raising=False)
    monkeypatch.setattr("baselines.inference.comparison.PAPER_SIZE", (1500, 32))
    done = run("bench-inference", *QUICK, "--approximate", "none")
    assert done.exit_code == 0, done.output
    assert "1,500 x 32 generated rows" in done.output
    kept = json.loads(Path("results/bench-inference.json").read_text())  # where `ppa report` finds it
    assert kept[0].keys() >= {"name", "value", "unit"}


def test_the_store_at_hand(make_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(rows=1500, dim=32)
    monkeypatch.setenv("ACTSTORE", str(store.path))
    done = run("bench-inference", *QUICK, "--approximate", "none", "--no-fp32", "--json")
    assert done.exit_code == 0, done.output
    names = [one["name"] for one in json.loads(done.stdout)]
    assert "exact NN, ours, fp16 rows, batch 2" in names
    assert not any("faiss" in name for name in names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--synthetic", "12"), "ROWSxDIM"),
        (("--synthetic", "10x10", "--store", "x.zarr"), "give one of both"),
        (("--synthetic", "999999999x2048"), "fewer rows"),
        (("--synthetic", "2000x16", "--out", "table.txt"), "must end in .md, .csv or .json"),
        (("--synthetic", "2000x16", "--device", "cuda"), "no CUDA device"),
        (("--synthetic", "2000x16", "--backbone", "resnet5"), "resnet50"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("bench-inference", *QUICK, *arguments)
    assert done.exit_code in (1, 2)
    assert message in done.output
    assert "Traceback" not in done.output
    assert "generating" not in done.output


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    done = run("bench-inference", "--synthetic", "20000x64", *QUICK, "--device", "cuda", "--out", out)
    assert done.exit_code == 0, done.output
    names = [one["name"] for one in json.loads(out.read_text())]
    assert "image to category, exact NN, faiss on the GPU, fp16, batch 2" in names


def test_adaptation() -> None:
    small = ("--dim", "16", "--categories", "5", "--base", "4", "--images", "1000")
    done = run("bench-adapt", *small, "--backbone", "small", "--seconds", "0.01", "--threads", "1", "--json")
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert [one["peer_value"] for one in results] == [None, 0.683, 6480, 6480]
    assert all(one["value"] > 0 for one in results)
    stored, seen = results[:2]
    assert "from activations" in stored["name"]
    assert "from images through small" in seen["name"]
    assert seen["value"] > stored["value"]  # the network's pass is in it


def test_without_a_network_nothing_stands_beside_the_papers_figure() -> None:
    done = run("bench-adapt", "--dim", "16", "--categories", "5", "--base", "4", "--backbone", "none",
               "--seconds", "0.01", "--threads", "1")  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "0.683" not in done.stdout
    assert "6,480 s" in done.stdout

"""The lines a newcomer types, in an empty folder without internet, with nothing added to them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import actstore
from actstore.images.glyphs import write_glyphs
from cli.actstore import main as store_tool
from cli.ppa import main as ppa_tool
from tests.cli.conftest import invoke

LITE0 = "efficientnet-lite0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    """Empty but for photos/; nothing may be fetched, and nothing was before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACTSTORE", raising=False)
    write_glyphs(tmp_path / "photos", 10, 3, 2, size=40)
    return tmp_path


def store(*arguments: Any, code: int = 0) -> Any:
    return invoke(store_tool, arguments, code)


def ppa(*arguments: Any, code: int = 0) -> Any:
    return invoke(ppa_tool, arguments, code)


def test_build_and_train_need_no_option(folder: Path) -> None:
    built = store("build", "photos/")
    line = next(line for line in built.stderr.splitlines() if line.startswith("network: "))
    assert LITE0 in line
    assert "--backbone" in line
    provenance = actstore.open("photos.zarr").spec.provenance
    assert provenance["backbone"] == LITE0
    assert "resnet50" in provenance["network_chosen"]
    trained = ppa("train", "--phi", "phi1", "--epochs", "2")
    assert "90%" in trained.stderr
    assert Path("runs/phi1/model.safetensors").is_file()


def test_a_build_goes_on_with_the_network_it_began_with(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.move("photos/val", "later")
    store("build", "photos/train", "photos.zarr", "--workers", 0)

    def never(*_: Any) -> Any:
        raise AssertionError("the store says which network it is")

    monkeypatch.setattr("actstore.backbones.weights.default_backbone", never)
    assert "network: " not in store("build", "photos/train", "photos.zarr", "--workers", 0).stderr


def test_a_store_of_code_or_other_weights_is_not_gone_on_with(folder: Path) -> None:
    store("build", "photos/", "--backbone", "small", "--random-weights", "--workers", 0)
    assert "small needs weights" in store("build", "photos/", code=1).stderr
    actstore.open("photos.zarr").add_provenance(backbone="os:abort")
    assert "os:abort" in store("build", "photos/", code=1).stderr
    actstore.open("photos.zarr").add_provenance(backbone=LITE0)
    assert "--weights" in store("build", "photos/", code=1).stderr


def test_photos_are_learnt_without_an_option(folder: Path) -> None:
    adapted = ppa("adapt", "--support", "photos/train", "--device", "cpu")
    assert f"network: {LITE0}" in adapted.stderr
    checked = ppa("check", "photos/train", "--device", "cpu", "--json")
    assert f"network: {LITE0}" in checked.stderr
    assert json.loads(checked.stdout)


def test_bad_input_is_answered_before_anything_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACTSTORE_OFFLINE", raising=False)
    monkeypatch.setattr("actstore.backbones.weights.urlopen", None)
    Path("empty").mkdir()
    assert "empty" in store("build", "empty", code=1).stderr
    assert "did you mean resnet50" in store("build", "photos", "--backbone", "resnet5", code=1).stderr
    assert "--backbone" in store("build", "photos", "--pretrained", code=2).stderr
    assert "--offline" in store("build", "photos", "--backbone", "resnet50", "--pretrained", "--offline", code=2).stderr
    for refused in (
        store("build", "photos", "--device", "gpu", code=1),
        ppa("adapt", "--support", "photos/train", "--device", "gpu", code=1),
        ppa("adapt", "--support", "absent", code=1),
        ppa("adapt", "--support", "empty", code=1),
    ):
        assert "network: " not in refused.stderr


def test_what_follows_a_training_needs_no_more_than_its_name(folder: Path) -> None:
    """The README's own sequence: eval finds the store and keeps its table, report shows it."""
    store("build", "photos/", "--backbone", "small", "--random-weights", "--workers", 0)
    ppa("train", "--phi", "phi1", "--epochs", 1, "--batches", 3)
    store("build", "photos/", "other.zarr", "--backbone", "simple", "--random-weights", "--workers", 0)
    evaluated = ppa("eval", "--phi", "phi1", "--draws", 2)
    assert "photos.zarr" in evaluated.stderr  # of the two the one that phi was trained on
    assert "shots: 1,2,3, as category" in evaluated.stderr  # there are three examples of each
    table = [line for line in evaluated.stdout.splitlines() if line.startswith(("method", "NN+Cosine", "phi1"))]
    assert len(table) == 1 + 3 * 4
    assert max(map(len, table)) <= 100
    assert "paper" not in table[0]  # its figures are of 1,000 categories
    kept = json.loads(Path("results/table.json").read_text())
    assert [row["shots"] for row in kept if row["method"] == "phi1"] == ["1", "2", "3"]
    assert "runs/phi1" in ppa("eval", "--phi", "ph1", code=2).stderr
    ppa("calibrate", "--phi", "phi1", "--tasks", 2)
    ppa("sessions", "--phi", "phi1", "--draws", 2, "--shots", 1)
    ppa("analyse", "--phi", "phi1")
    reported = ppa("report")
    assert "phi1" in Path("report.html").read_text()
    assert "the table" not in reported.stderr
    assert "N-way tasks (`ppa episodes --phi runs/phi1` makes it)" in reported.stderr
    assert "figures (`ppa figures`" in reported.stderr


def test_what_is_missing_for_a_table_is_made_as_the_error_says(folder: Path) -> None:
    network = ("--backbone", "small", "--random-weights", "--workers", 0)
    shutil.move("photos/val", "later/val")
    store("build", "photos/", *network)
    advice = ppa("eval", "--methods", "nn", code=1).stderr.splitlines()[-1].split("`")
    assert advice[1] == "actstore build FOLDER photos.zarr"
    store(*advice[1].replace("FOLDER", "later/").split()[1:], *network)
    ppa("eval", "--methods", "nn", "--draws", 2)


def test_several_stores_are_named_with_the_line_to_type(folder: Path) -> None:
    for number, name in enumerate(("old.zarr", "new.zarr")):
        store("synth", name, "--rows", 60, "--dim", 8, "--classes", 10)
        os.utime(Path(name) / "zarr.json", (2e9 + number, 2e9 + number))
    said = ppa("train", "--phi", "phi1", "--epochs", "2", code=2).stderr
    assert "new.zarr, old.zarr" in said
    line = said.split("`")[1]
    assert line == "ppa train --phi phi1 --epochs 2 --store new.zarr"
    ppa(*line.split()[1:], "--batches", 2)


def test_advice_for_an_interrupted_training_works_when_typed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from predictor.training import phi as training

    store("synth", "x.zarr", "--rows", 60, "--dim", 8, "--classes", 10)
    assert "`ppa train --phi phi1`" in ppa("eval", "--phi", "phi1", code=1).stderr
    assert "`ppa train --phi phi1 --out runs/phi1-long`" in ppa("eval", "--phi", "runs/phi1-long", code=1).stderr
    step = training.PhiTraining.step

    def interrupted(self: Any, number: int) -> Any:
        if number == 3:
            raise KeyboardInterrupt
        return step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(training.PhiTraining, "step", interrupted)
        ppa("train", "--phi", "phi1", "--lr", 0.02, "--epochs", 1, "--batches", 5, "--checkpoint-seconds", 0, code=1)
    assert "belongs to another training" in ppa("train", "--phi", "phi1", "--epochs", 1, code=1).stderr
    line = ppa("eval", "--phi", "phi1", code=1).stderr.split("`")[1]
    ppa(*line.split()[1:])
    assert Path("runs/phi1/model.safetensors").is_file()

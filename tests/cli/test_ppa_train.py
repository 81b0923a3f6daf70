from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore

Run = Callable[..., Any]
TINY = ("--epochs", 1, "--batches", 4)


class Malicious:
    """A pickle that leaves a file behind when it is opened as one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_run_and_its_repetition(here: Path, ppa: Run) -> None:
    result = json.loads(ppa("train", "--phi", "phi1", *TINY, "--out", "new", "--json").stdout)
    assert (result["folder"], result["phi"], result["preset"], result["steps"]) == ("new", "phi1", "paper", 4)
    assert (result["base"], result["novel"], result["warning"]) == (7, 3, None)
    assert {"loss", "base_top1", "novel_top1", "harmonic"} <= set(result)
    assert {"model.safetensors", "model.json", "log.csv", "curves.png"} <= {file.name for file in Path("new").iterdir()}
    again = ppa("train", "--phi", "phi1", *TINY, "--out", "new")
    assert again.stdout.startswith("new: phi1 after 4 steps in ")
    assert "held out, all-way, 1 shot: base " in again.stdout
    assert "categories: split.json of this folder" in again.stderr
    refused = ppa("train", "--phi", "phi1", *TINY, "--out", "new", "--seed", 5, code=1)
    assert "belongs to another training: config seed was 0, is 5" in refused.stderr
    ppa("train", "--phi", "phi1", *TINY, "--out", "new", "--seed", 5, "--restart")


def test_a_new_phi_does_not_inherit_a_calibration(here: Path, ppa: Run) -> None:
    ppa("calibrate", "--phi", "runs/phi2", "--shots", 1, "--tasks", 1)
    assert Path("runs/phi2/calibration.json").exists()
    ppa("train", "--phi", "phi2", *TINY, "--restart")
    assert not list(Path("runs/phi2").glob("calibration*"))


def test_another_preset_in_the_same_folder_is_refused(here: Path, ppa: Run) -> None:
    ppa("train", "--phi", "phi1", *TINY, "--out", "new")
    assert "decay" in ppa("train", "--phi", "phi1", "--preset", "code", *TINY, "--out", "new", code=1).stderr


def test_options_become_settings(here: Path, ppa: Run) -> None:
    ppa("train", "--phi", "phi2", "--preset", "code", *TINY, "--lr", 0.2, "--weight-decay", 0, "--momentum", 0.5,
        "--p-mean", 0.75, "--no-input-norm", "--no-bias", "--query-norm", "--seed", 3, "--resident")  # fmt: skip
    config = json.loads(Path("runs/phi2-code/model.json").read_text())["identity"]["config"]
    assert config == {
        "phi": "phi2", "epochs": 1, "batches": 4, "learning_rate": 0.2, "weight_decay": 0, "momentum": 0.5,
        "decay": [[50, 0.5], [120, 0.1], [175, 0.01]], "p_mean": 0.75, "input_norm": False, "bias": False,
        "query_norm": True, "seed": 3,
    }  # fmt: skip


def test_every_setting_has_an_option_and_the_default_is_sensible() -> None:
    from cli.ppa.train import train
    from predictor.training.phi import TrainConfig

    options = {parameter.name: parameter for parameter in train.params}
    assert {field.name for field in fields(TrainConfig)} - {"decay"} <= set(options)
    assert (options["phi"].default, options["preset"].default) == ("phi2", "paper")


def test_means_are_computed_and_it_says_so_once(here: Path, ppa: Run, world: Path) -> None:
    Path("x.zarr").unlink()
    shutil.copytree(world / "x.zarr", "x.zarr")
    for kept in Path("x.zarr/train").glob("class_*"):
        shutil.rmtree(kept)
    assert "computing the class means of x.zarr/train (once)" in ppa("train", *TINY, "--out", "a").stderr
    assert "computing the class means" not in ppa("train", *TINY, "--out", "b").stderr
    assert Path("a/model.safetensors").read_bytes()[-2000:] == Path("b/model.safetensors").read_bytes()[-2000:]


def test_without_a_test_split_nothing_is_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ppa: Run, make_activations: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    store = actstore.create("y.zarr", classes=[f"c{n}" for n in range(10)], dim=16,
                            provenance={"trained_classes": ["c9"]})  # fmt: skip
    with store.writer("train") as writer:
        writer.append(*make_activations(5, 0))
    result = ppa("train", "--phi", "phi1", *TINY)
    assert "the store has no split val or test, so nothing was held out" in result.stdout
    assert "WARNING: the backbone was trained on novel class 'c9'" in result.stdout
    assert "the first 90% of the class names are the base" in result.stderr
    assert Path("runs/phi1/model.safetensors").exists()


def test_a_loss_that_is_no_number(here: Path, ppa: Run) -> None:
    result = ppa("train", *TINY, "--batches", 40, "--lr", 1e10, "--out", "new", "--checkpoint-seconds", 0, code=1)
    assert "became" in result.stderr
    assert "the last good checkpoint is kept" in result.stderr
    assert Path("new/checkpoint.safetensors").exists()
    assert not Path("new/model.safetensors").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.safetensors"])
def test_a_malicious_pickle_is_not_run(here: Path, ppa: Run, name: str) -> None:
    Path("new").mkdir()
    Path("new", name).write_bytes(pickle.dumps(Malicious(here / "it ran")))
    result = ppa("train", *TINY, "--out", "new", code=1)
    assert f"new/{name} exists" in result.stderr
    assert not Path("it ran").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--phi", "phi3"], 2, "'phi3' is not one of"),
        (["--phi", "phi2star", "--p-mean", 0.5], 1, "phi2star is trained on means only, got p_mean 0.5"),
        (["--p-mean", 2], 2, "is not in the range"),
        (["--lr", 0], 2, "is not in the range"),
        (["--epochs", 0], 2, "is not in the range"),
        (["--store", "no.zarr"], 1, "no.zarr"),
        (["--split", "tests"], 1, "tests"),
        (["--test-split", "tests"], 1, "tests"),
        (["--split-file", "absent.json"], 1, "no split file at absent.json"),
        (["--split-file", "other.json"], 1, "base class 'zebra' of the split is not among"),
        (["--device", "tpu"], 1, "device must be auto"),
    ],
)
def test_bad_input(here: Path, ppa: Run, arguments: list[Any], code: int, message: str) -> None:
    Path("other.json").write_text(json.dumps({"base": ["zebra"], "novel": []}))
    assert message in ppa("train", *TINY, "--out", "new", *arguments, code=code).stderr
    assert not Path("new/model.safetensors").exists()


def test_a_base_class_without_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ppa: Run, make_activations: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    rows, labels = make_activations(5, 0)
    kept = labels != 4
    actstore.from_arrays(Path("y.zarr"), {"train": (rows[kept], labels[kept])}, classes=[f"c{n}" for n in range(10)])
    assert "class 'c4' has no rows to sample" in ppa("train", *TINY, code=1).stderr
    assert np.isnan(actstore.open("y.zarr")["train"].means()[4]).all()

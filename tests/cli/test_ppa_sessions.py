"""`ppa sessions` as a user runs it."""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import actstore

Run = Callable[..., Any]
FAST = ("--way", 2, "--shots", 2, "--draws", 3)


def test_its_help_says_that_a_network_that_saw_a_category_is_warned_of(ppa: Run) -> None:
    told = " ".join(ppa("sessions", "--help").stdout.split())
    assert "Of a backbone that was trained on a category of a session the table warns." in told


def test_a_table_of_sessions(here: Path, ppa: Run) -> None:
    ppa("calibrate", "--phi", "runs/phi2", "--tasks", 3, "--shots", 2)
    arguments = ("sessions", "--phi", "runs/phi2", *FAST)
    rows = json.loads(ppa(*arguments, "--json", "--out", "t.json").stdout)
    assert json.loads(Path("t.json").read_text()) == rows
    assert [row["method"] for row in rows] == ["Nearest class mean", "phi2, mean", "phi2, calibrated, max"]
    assert rows[0]["categories"] == [7, 9, 10]
    for row in rows:
        assert row["harmonic_mean"][0] is None
        assert row["average_accuracy"] == pytest.approx(sum(row["accuracy"]) / 3, abs=0.02)
        assert row["last_accuracy"] == row["accuracy"][-1]
        assert "7 rows of the base in val: no method is tested on those" in row["warning"]
    shown = ppa(*arguments, "--out", "t.md", "--chart", "t.png").stdout
    assert Path("t.md").read_text() == shown
    assert "no training in a session" in shown
    with Image.open("t.png") as image:
        assert image.width > 500
    ppa(*arguments, "--out", "t.csv")
    with Path("t.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [float(line["accuracy"]) for line in lines[:3]] == rows[0]["accuracy"]


def test_published_rows_stand_beside_their_own_protocol_alone(tmp_path: Path, ppa: Run, make_activations: Any) -> None:
    import numpy as np

    names = [f"c{number:03}" for number in range(100)]
    labels = np.repeat(np.arange(100), 6)
    rows = np.random.default_rng(0).random((600, 8)) + (labels[:, None] % 8 == np.arange(8))
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (rows, labels), "val": (rows, labels)}, classes=names)
    arguments = ("sessions", "--store", store.path, "--draws", 1, "--split-file", tmp_path / "split.json")
    (tmp_path / "split.json").write_text(json.dumps({"base": names[:60], "novel": names[60:]}))
    found = json.loads(ppa(*arguments, "--json").stdout)
    last = {row["method"]: (row["backbone"], row["last_accuracy"]) for row in found if "published" in row}
    assert last["NC-FSCIL"] == ("ResNet-12", 58.31)
    assert last["CEC"] == ("ResNet-18", 47.63)
    assert len(found[0]["accuracy"]) == 9
    assert "may have seen the novel categories" in found[0]["warning"]
    assert "published" not in ppa(*arguments, "--shots", 1).stdout  # another number of examples
    (tmp_path / "split.json").write_text(json.dumps({"base": names[:80], "novel": names[80:]}))
    assert "NC-FSCIL" not in ppa(*arguments).stdout


def test_a_network_that_saw_a_category_of_a_session_is_warned_of(here: Path, ppa: Run, make_activations: Any) -> None:
    splits = {"train": make_activations(6, 0), "val": make_activations(5, 1)}
    store = actstore.from_arrays(Path("seen.zarr"), splits, classes=[f"c{number}" for number in range(10)])
    store.add_provenance(trained_classes=["c0", "c8", "c9"])
    warned = ppa("sessions", "--store", "seen.zarr", *FAST)
    assert "WARNING: the backbone was trained on novel class 'c8' and 1 more; these are no few-shot" in warned.stdout
    names = [f"c{number}" for number in range(10)]
    Path("validated.json").write_text(json.dumps({"base": names[:6], "validation": names[8:], "novel": names[6:8]}))
    shown = ppa("sessions", "--store", "seen.zarr", "--split-file", "validated.json", *FAST)
    assert "trained on" not in shown.output


def test_a_method_is_measured_on_the_activations_that_it_reads(
    here: Path, ppa: Run, make_activations: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baselines.class_mean import ClassMean

    splits = {"train": make_activations(12, 0, dim=8), "val": make_activations(4, 1, dim=8)}
    own = actstore.from_arrays(Path("own.zarr"), splits, classes=[f"c{number}" for number in range(10)])

    def of_its_own_store(*_: Any, **__: Any) -> list[Any]:
        method = ClassMean()
        method.store = own.path.local_path
        return [method]

    monkeypatch.setattr(importlib.import_module("cli.ppa.sessions"), "make_baselines", of_its_own_store)
    (row,) = json.loads(ppa("sessions", "--store", "x.zarr", *FAST, "--json").stdout)
    assert row["accuracy"][0] > 50


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--methods", "none"], 2, "nothing to measure"),
        (["--methods", "finetune"], 1, "a session has no training"),
        (["--out", "t.html"], 2, "--out must end in .md, .csv or .json"),
        (["--shots", "13"], 1, "has 12 rows, too few for 13 shots"),
        (["--phi", "runs/absent"], 1, "no trained phi at runs/absent"),
    ],
)
def test_bad_input(here: Path, ppa: Run, arguments: list[Any], code: int, message: str) -> None:
    ppa("baseline", "head", "--epochs", 1)
    assert message in ppa("sessions", *arguments, code=code).stderr

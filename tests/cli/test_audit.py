"""`actstore audit`, and what `ppa eval` says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import actstore
from tests.cli.conftest import CLASSES, invoke

Run = Callable[..., Any]
EVAL = ("eval", "--store", "y.zarr", "--split-file", "split.json", "--methods", "nn", "--shots", "1", "--draws", 2)


def run(*arguments: Any, code: int = 0) -> Any:
    from cli.actstore import main

    return invoke(main, arguments, code)


@pytest.fixture
def store(here: Path, make_activations: Any) -> Path:
    """y.zarr: three images of val are in train too, one with another label."""
    train, val = make_activations(12, 0), make_activations(4, 1)
    val[0][2], val[0][37], val[0][9] = train[0][1], train[0][110], train[0][70]
    ids = {
        name: [f"{name}-{row}.jpg" for row in range(len(rows[0]))] for name, rows in (("train", train), ("val", val))
    }
    actstore.from_arrays(here / "y.zarr", {"train": (*train, ids["train"]), "val": (*val, ids["val"])}, classes=CLASSES)
    return here / "y.zarr"


def test_leaks_are_named_for_people_and_machines(store: Path) -> None:
    text = run("audit", "y.zarr").stdout
    assert "y.zarr: 160 rows of train, val" in text
    assert "leak  val/2   val-2.jpg   train/1    train-1.jpg" in text
    assert "labels differ: c2, c5" in text
    found = json.loads(run("audit", "y.zarr", "--json").stdout)
    assert found["summary"]["leaks"] == found["summary"]["copy"] == 3
    assert [line["other_row"] for line in found["findings"] if line["leak"]] == [1, 70, 110]
    assert found["splits"] == {"train": 120, "val": 40}
    assert "val" not in json.loads(run("audit", "y.zarr", "--split", "train", "--json").stdout)["splits"]


def test_outputs_are_made_again_by_force_alone(store: Path) -> None:
    for force in ([], ["--force"]):
        run("audit", "y.zarr", "-o", "f.csv", "--keep", "elsewhere", *force)
        run("audit", "y.zarr", "-o", "f.parquet", "--sheet", "f.html", "--images", ".", *force)
    assert Path("elsewhere/audit.safetensors").exists()
    assert "Leaks" in Path("f.html").read_text()
    Path("mine.csv").write_text("a,b\n")
    said = run("audit", "y.zarr", "-o", "mine.csv", code=1).stderr
    assert "mine.csv exists" in said
    said = run("audit", "y.zarr", "--sheet", "f.csv", code=2).stderr
    assert "--sheet must end in .html" in said
    assert "its rows were imported" in run("audit", "y.zarr", "--sheet", "g.html", code=1).stderr


def test_generated_rows_can_be_audited_too(here: Path) -> None:
    run("synth", "s.zarr", "--rows", 80, "--dim", 8, "--classes", 4)
    assert "s.zarr: 80 rows of train" in run("audit", "s.zarr").stdout


def test_eval_names_leaks_between_support_and_test(store: Path, ppa: Run) -> None:
    assert "also in train" not in ppa(*EVAL).output
    run("audit", "y.zarr")
    (warning,) = [line for line in ppa(*EVAL).stdout.splitlines() if "also in train" in line]
    assert warning.startswith("WARNING: 3 test images are also in train, ")
    assert "; val val-2.jpg = train train-1.jpg and 2 more; `actstore audit y.zarr` lists them" in warning
    assert all(warning in row["warning"] for row in json.loads(ppa(*EVAL, "--json").stdout))
    many = ppa(*EVAL[:-1], 60).stdout  # every row of a novel category is drawn in some
    assert "3 test images are also in train, 1 of them as support drawn here" in many


def test_eval_counts_support_that_is_a_later_copy(here: Path, ppa: Run, make_activations: Any) -> None:
    train, val = make_activations(12, 0), make_activations(4, 1)
    train[0][110] = val[0][37] = train[0][1]  # the first copy is of a base category, and so never support
    actstore.from_arrays(here / "y.zarr", {"train": train, "val": val}, classes=CLASSES)
    run("audit", "y.zarr")
    said = ppa(*EVAL[:-1], 60).stdout
    assert "1 test image is also in train, 1 of them as support drawn here" in said


def test_eval_does_not_use_an_audit_of_other_rows(store: Path, ppa: Run, make_activations: Any) -> None:
    run("audit", "y.zarr")
    with actstore.open("y.zarr").writer("val") as writer:
        writer.append(*make_activations(1, 2), [f"new-{row}.jpg" for row in range(10)])
    done = ppa(*EVAL)
    assert "also in train" not in done.stdout
    assert "the audit in y.zarr.audit is older than split 'val' as it is now" in done.stdout
    run("audit", "y.zarr")
    assert "WARNING: 3 test images" in ppa(*EVAL).stdout
    Path("y.zarr.audit/audit.safetensors").write_bytes(b"nothing of the kind")
    assert "y.zarr.audit/audit.safetensors is damaged" in ppa(*EVAL).stdout

"""`ppa demo`, `ppa figures` and `ppa report` as a user runs them."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from cli.ppa.demo_steps import FULL, QUICK, Size, Step, plan_demo

demo = import_module("cli.ppa.demo")  # the package has the command of this name

TINY = Size(20, 6, 2, distortion=1.5, epochs=1, batch_size=16, phi_epochs=1, triplet_steps=3, calibration_tasks=2,
            draws=1, tasks=5, way=2, shots="1,2", batches=3, bench_seconds=None, workers=0)  # fmt: skip


def test_a_tiny_demo_from_nothing_and_again(ppa: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "QUICK", TINY)
    first = ppa("demo", "--quick", "--json")
    made = json.loads(first.stdout)
    assert len(made["ran"]) == made["steps"]
    page = Path(made["report"]).read_text()
    for text in ("ppa pretrain glyphs:20x6x2@1.5", "<details>", "Nearest class mean", "data:image/png",
                 "class-map-data", "Triplet"):  # fmt: skip
        assert text in page, text
    rows = json.loads((tmp_path / "demo-out" / "quick" / "table.json").read_text())
    assert {row["shots"] for row in rows} == {"1", "2", "all"}
    assert "[1/" in first.stderr
    assert "$ actstore build" in first.stderr
    resuming = ["pretrain", "build"]  # these find out by themselves that nothing is left to do
    again = ppa("demo", "--quick", "--json")
    assert json.loads(again.stdout)["ran"] == resuming
    assert again.stderr.count("up to date") == made["steps"] - len(resuming)

    Path("demo-out/quick/report.html").unlink()
    assert json.loads(ppa("demo", "--quick", "--json").stdout)["ran"] == [*resuming, "report"]
    drawn = {path.stem for path in Path("demo-out/quick/figures").glob("*.png")}
    assert drawn == {"curves", "methods", "shots", "support", "class-maps", "channels", "training"}
    assert {path.stem for path in Path("demo-out/quick/figures").glob("*.svg")} == drawn


def test_figures_without_any_input_fail_and_say_what_is_missing(ppa: Any, tmp_path: Path) -> None:
    said = ppa("figures", "--run-folder", tmp_path, "--json", code=1).stderr
    assert "inference: no table of `ppa bench-inference`" in said
    assert "channels: no run of `ppa train --phi phi1`" in said


def test_plans_are_of_the_sizes_promised() -> None:
    assert (FULL.classes, QUICK.classes < 300) == (1000, True)
    steps = plan_demo(Path("d"), FULL)
    names = [step.name for step in steps]
    assert names == list(dict.fromkeys(names))
    by_resuming = [Path("d/backbone/best.safetensors"), Path("d/glyphs.zarr/val/zarr.json")]
    for number, step in enumerate(steps):  # nothing is read before it is made
        earlier = [*by_resuming, *(path for before in steps[:number] for path in before.outputs)]
        assert set(step.inputs) <= set(earlier), step.name
    assert steps[-1].outputs == (Path("d/report.html"),)
    bench = next(step for step in steps if step.name == "bench-inference")
    assert bench.command.startswith("ppa bench-inference --store d/glyphs.zarr")
    assert bench.outputs == (Path("d/bench-inference.json"),)
    assert "bench-inference" not in {step.name for step in plan_demo(Path("d"), TINY)}


def test_a_step_is_done_again_when_an_input_is_newer(tmp_path: Path) -> None:
    read, made = tmp_path / "in", tmp_path / "out"
    step = Step("one", "a step", "ppa x", (read,), (made,))
    assert not step.is_up_to_date()
    for path, seconds in ((read, 1), (made, 2)):
        path.touch()
        os.utime(path, (seconds, seconds))
    assert step.is_up_to_date()
    os.utime(read, (3, 3))
    assert not step.is_up_to_date()
    assert not Step("one", "a step that resumes by itself", "ppa x", (read,)).is_up_to_date()


def test_an_optional_step_that_fails_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = Step("one", "a step", f"ppa figures --run-folder {tmp_path}/no", optional=True)
    assert demo.perform(step, step.title) is None
    assert "left out: no folder" in capsys.readouterr().err


def test_report_of_an_empty_folder_is_refused(ppa: Any, tmp_path: Path) -> None:
    assert "nothing to report" in ppa("report", "--folder", tmp_path, code=2).stderr


def test_a_backbone_that_saw_a_novel_class_is_told(ppa: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).random((12, 8), np.float32)
    labels = np.repeat(np.arange(4), 3)
    provenance = {"trained_classes": ["a", "d"]}
    actstore.from_arrays("x.zarr", {"train": (rows, labels)}, classes=list("abcd"), provenance=provenance)
    Path("split.json").write_text(json.dumps({"base": ["a", "b", "c"], "novel": ["d"]}))
    ppa("train", "--phi", "phi1", "--store", "x.zarr", "--epochs", 1, "--batches", 2)
    ppa("report", "--folder", ".")
    assert 'role="alert">WARNING: the backbone was trained on novel class' in Path("report.html").read_text()

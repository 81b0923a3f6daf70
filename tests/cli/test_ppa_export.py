"""`ppa export --with-backbone`, and the scripts in examples/ that use exports without this library."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from predictor.classifier.classifier_file import load_classifier, save_classifier

Run = Callable[..., Any]
EXAMPLES = Path(__file__).parents[2] / "examples"


def script(name: str, *arguments: Any) -> list[str]:
    """Lines that a script prints where `import actstore` or `predictor` would fail."""
    text = (EXAMPLES / name).read_text()
    assert not re.search(r"^\s*(from|import) (actstore|predictor|baselines|cli)\b", text, re.MULTILINE)
    body = text.split('"""')[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 20
    command = [sys.executable, str(EXAMPLES / name), *(str(one) for one in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def learnt(studio: Path, ppa: Run, adapt: tuple[Any, ...]) -> Path:
    ppa(*adapt, "--novel-bias", 0.5)
    return Path("classifier.safetensors")


def test_a_graph_with_its_network_and_its_script(learnt: Path, ppa: Run) -> None:
    shown = ppa("export", "--onnx", "model.onnx", "--with-backbone", "--check", "new").stdout
    assert "model.onnx: 12 rows for 7 categories; onnxruntime names the same category first for 7 of 7" in shown
    photos = sorted(Path("new").rglob("*.png"))
    lines = script("onnx_photo.py", "model.onnx", *photos)
    expected = json.loads(ppa("predict", *photos, "--device", "cpu", "--json").stdout)
    for line, one in zip(lines, expected, strict=True):
        photo, first, *others = line.split("  ")
        assert photo == one["image"]
        assert first.rpartition(" ")[0] == one["top"][0]["display"]
        assert float(first.rpartition(" ")[2].rstrip("%")) == pytest.approx(100 * one["top"][0]["probability"], abs=2)
        assert len(others) == 4


def test_a_layer_and_its_script(learnt: Path, ppa: Run) -> None:
    ppa("export", "--torch", "linear.pt")
    rows = actstore.open("g.zarr")["train"].to_torch().float()
    np.save("rows.npy", rows.numpy())
    lines = script("linear_rows.py", "linear.pt", "rows.npy")
    expected = load_classifier(learnt).predict(rows)
    assert [line.split("  ")[0].rpartition(" ")[0] for line in lines] == [line[0][0] for line in expected]


def test_both_exports_at_once_are_made_again(learnt: Path, ppa: Run) -> None:
    command = ("export", "--onnx", "c.onnx", "--with-backbone", "--torch", "c.pt", "--json", "--force")
    first, second = (json.loads(ppa(*command).stdout) for _ in range(2))
    assert first == second
    assert (first["checked_images"], first["same_first"]) == (4, 4)
    assert first["probability_difference"] < 0.02


def test_views_are_refused_by_name(learnt: Path, ppa: Run) -> None:
    classifier = load_classifier(learnt)
    classifier.about["network"]["views"] = 10
    save_classifier(learnt, classifier)
    said = ppa("export", "--onnx", "c.onnx", "--with-backbone", code=1).stderr
    assert "the classifier averages 10 views of an image, a graph reads one" in said
    assert not Path("c.onnx").exists()

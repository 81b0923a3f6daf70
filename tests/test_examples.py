"""The examples run as they are, each within 40 lines, and say what is true of the data that they generate."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import actstore

FOLDER = Path(__file__).parents[1] / "examples"
NAMES = ("linear_probe", "cka", "neighbours")


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, "-W", "error", FOLDER / f"{name}.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_short_enough_to_read(name: str) -> None:
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) < 40


def test_linear_probe() -> None:
    found = re.fullmatch(r"([\d.]+)% of 500 rows of val, 10 classes\n", run("linear_probe"))
    assert found is not None
    assert float(found[1]) > 80  # the centres are eight noises apart; chance is 10%


@pytest.mark.numeric
def test_cka(tmp_path: Path) -> None:
    assert re.fullmatch(r"CKA of train and train\.layer3: 0\.\d{4}\n", run("cka"))
    random = np.random.default_rng(0)
    rows = random.standard_normal((300, 8)).astype(np.float32)
    turned = 3 * rows @ np.linalg.qr(random.standard_normal((8, 8)))[0] + 1
    other = random.standard_normal((300, 8)).astype(np.float32)
    actstore.from_arrays(tmp_path / "x.zarr", {"a": (rows, None), "b": (turned, None), "c": (other, None)})
    assert run("cka", tmp_path / "x.zarr", "a", "b") == "CKA of a and b: 1.0000\n"
    x, y = (part - part.mean(0) for part in (rows.astype(float), other.astype(float)))
    expected = np.linalg.norm(x.T @ y) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    assert abs(float(run("cka", tmp_path / "x.zarr", "a", "c").split()[-1]) - expected) < 1e-4


def test_neighbours() -> None:
    lines = run("neighbours").splitlines()
    found = [re.fullmatch(r"other(\d+) is like first(\d+): 0\.9\d+", line) for line in lines]
    assert [(int(one[1]), int(one[2])) for one in found if one] == [(80 + row, 50 * row) for row in range(20)]

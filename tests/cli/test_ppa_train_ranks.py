"""`torchrun … ppa train` as a user runs it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.numeric

Run = Callable[..., Any]
# One step: its loss is that of the same phi on the same rows. test_train_ranks follows more of them, in float64.
TINY = ("--epochs", 1, "--batches", 1, "--device", "cpu")


def start(*arguments: Any) -> subprocess.Popen[str]:
    """Two processes of the console script."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    command = [*launcher, Path(sys.executable).with_name("ppa"), "train", *arguments]
    environment = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    return subprocess.Popen(
        [str(one) for one in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_two_processes_speak_write_and_fail_as_one(here: Path, ppa: Run) -> None:
    bad = start("--phi", "phi1", *TINY, "--out", "runs/phi1")  # a longer training is there
    refused, reasons = bad.communicate(timeout=300)
    alone = json.loads(ppa("train", "--phi", "phi2", *TINY, "--out", "one", "--json").stdout)

    good = start("--phi", "phi2", *TINY, "--out", "two", "--json")
    said, errors = good.communicate(timeout=300)
    assert good.returncode == 0, errors
    result = json.loads(said)
    assert result.keys() == alone.keys()
    assert result["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert (result["steps"], result["base"], result["novel"]) == (1, 7, 3)
    assert errors.count("categories: split.json of this folder") == 1
    assert {file.name for file in Path("two").iterdir()} == {file.name for file in Path("one").iterdir()}
    with Path("two/log.csv").open(newline="") as file:
        assert [line["step"] for line in csv.DictReader(file)] == ["1"]

    assert (bad.returncode, refused) == (1, "")
    assert reasons.replace("ChildFailedError: ", "").count("Error: ") == 1
    assert reasons.count("belongs to another training: config epochs was 2, is 1") == 1
    assert "ppa FAILED" in reasons  # torchrun's own words

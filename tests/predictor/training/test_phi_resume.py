"""A training of phi that was killed and repeated ends bit for bit as one that was not."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import actstore
from predictor.protocol.category_split import CategorySplit
from predictor.training import Figures, RunOptions, Tensors
from predictor.training.loop import read_model, read_training
from predictor.training.phi import TrainOptions, choose_config, run_phi_training

pytestmark = pytest.mark.numeric

STEPS = 14
EVERY_STEP = TrainOptions("cpu", run=RunOptions(checkpoint_seconds=0))
CONFIG = choose_config(
    "code", "phi2", epochs=2, batches=7, learning_rate=0.05, decay=((1, 0.5),), query_norm=True, seed=3
)


class KilledError(Exception):
    """Stands for the kill."""


def run(store: actstore.ActivationStore, categories: CategorySplit, folder: Path, stops: list[int]) -> None:
    """Train with a kill at each of these steps, before its checkpoint is written, then to the end."""
    for stop in [*stops, 0]:

        def report(done: int, total: int, figures: Figures, stop: int = stop) -> None:
            assert total == STEPS
            if done == stop:
                raise KilledError

        try:
            run_phi_training(store["train"], store["val"], categories, CONFIG, folder, EVERY_STEP, report)
        except KilledError:
            assert stop
        else:
            assert not stop


def log(folder: Path) -> list[dict[str, str]]:
    with (folder / "log.csv").open(newline="") as file:
        return [{key: value for key, value in line.items() if key != "seconds"} for line in csv.DictReader(file)]


def assert_same(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def whole(store: actstore.ActivationStore, categories: CategorySplit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(store, categories, folder, [])
    return folder


@pytest.mark.parametrize("stops", [[1], [7], [8], [STEPS], [3, 3, 9, 13]], ids=str)
def test_killed_at_any_step_the_weights_and_the_log_are_the_same(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path, whole: Path, stops: list[int]
) -> None:
    run(store, categories, tmp_path, stops)
    assert_same(read_model(tmp_path / "model.safetensors").tensors, read_model(whole / "model.safetensors").tensors)
    assert log(tmp_path) == log(whole)
    assert len(log(whole)) == 2
    assert not (tmp_path / "checkpoint.safetensors").exists()


def test_the_momentum_is_the_same_too(
    store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path
) -> None:
    found = {}
    for name, stops in (("once", [12]), ("often", [4, 5, 10, 12])):
        for stop in stops:
            with pytest.raises(KilledError):
                run_phi_training(
                    store["train"], store["val"], categories, CONFIG, tmp_path / name, EVERY_STEP, killer(stop)
                )
        found[name] = read_training(tmp_path / name / "checkpoint.safetensors")
    (once, text), (often, other) = found["once"], found["often"]
    assert_same(once, often)
    assert sum(name.startswith("optimiser.momentum_buffer.") for name in once) == 5  # two layers and the scale
    assert text["state"]["step"] == other["state"]["step"] == 11
    assert text["state"]["sums"] == other["state"]["sums"]


def killer(stop: int) -> Any:
    def report(done: int, total: int, figures: Figures) -> None:
        if done == stop:
            raise KilledError

    return report


def test_a_real_kill(store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path, whole: Path) -> None:
    """SIGKILL while the steps run, as soon as a few are done."""
    program = f"""
import time, torch, actstore
from pathlib import Path
from predictor.protocol.category_split import CategorySplit
from predictor.training import RunOptions
from predictor.training.phi import TrainConfig
from predictor.training.phi import TrainOptions, run_phi_training

torch.set_num_threads(1)
store = actstore.open({str(store.path)!r})

def report(done, total, figures):
    print(done, flush=True)
    time.sleep(0.05)

categories = CategorySplit.from_json({categories.to_json()!r})
run_phi_training(store["train"], store["val"], categories, {CONFIG!r}, Path({str(tmp_path)!r}),
          TrainOptions("cpu", run=RunOptions(checkpoint_seconds=0)), report)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == 6:
                time.sleep(0.02)
                child.send_signal(signal.SIGKILL)
                break
    assert child.returncode == -signal.SIGKILL
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert not (tmp_path / "model.safetensors").exists()
    run(store, categories, tmp_path, [])
    assert_same(read_model(tmp_path / "model.safetensors").tensors, read_model(whole / "model.safetensors").tensors)
    assert log(tmp_path) == log(whole)

"""Softmax regression from a store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import actstore
from actstore.errors import InvalidInputError
from baselines.large_sample import train_on_rows
from baselines.linear import HEAD, LinearConfig, LinearTrainee, hold_out, trained_head
from baselines.oracle import LinearOracle
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import read_head
from predictor.training import RunOptions

pytestmark = pytest.mark.numeric

SPLIT = CategorySplit(("c4", "c0", "c2", "c5"), ("c1", "c3"))
NAMES = (*SPLIT.base, *SPLIT.novel)
CONFIG = LinearConfig(epochs=4, batch_size=16, patience=9)


class Killed(Exception):
    pass


def kill_at(step: int) -> object:
    def report(done: int, total: int, figures: object) -> None:
        if done == step:
            raise Killed

    return report


def test_it_learns_what_can_be_learned_and_reads_raw_activations(train: actstore.Split, tmp_path: Path) -> None:
    trained = train_on_rows(LinearTrainee, "oracle", train, NAMES, tmp_path / "run", CONFIG)
    oracle = LinearOracle(trained_head(trained), SPLIT.novel)
    oracle.prepare(BaseCategories.of_split(train, SPLIT.base))
    scores = oracle.scores(train.to_torch(), torch.empty(2, 1, 16))
    places = torch.tensor([NAMES.index(train.classes[label]) for label in train.labels])
    assert (scores.argmax(1) == places).float().mean() > 0.95
    assert (oracle.name, oracle.finetuned, oracle.uses_support) == ("Oracle linear", True, False)
    written = read_head(tmp_path / "run" / HEAD)
    assert written.classes == NAMES
    assert torch.equal(written.weight, trained.tensors["weight"])


@pytest.mark.parametrize("step", [5, 20, 30])
def test_a_killed_training_ends_as_one_that_was_not(train: actstore.Split, tmp_path: Path, step: int) -> None:
    whole = train_on_rows(LinearTrainee, "oracle", train, NAMES, tmp_path / "whole", CONFIG)
    every = RunOptions(checkpoint_seconds=0)
    with pytest.raises(Killed):
        train_on_rows(
            LinearTrainee, "oracle", train, NAMES, tmp_path / "run", CONFIG, options=every, report=kill_at(step)
        )
    resumed = train_on_rows(LinearTrainee, "oracle", train, NAMES, tmp_path / "run", CONFIG, options=every)
    assert all(torch.equal(whole.tensors[name], resumed.tensors[name]) for name in ("weight", "bias"))
    assert whole.figures == resumed.figures


def test_it_stops_when_the_held_out_rows_gain_nothing_and_keeps_the_best(train: actstore.Split) -> None:
    config = replace(CONFIG, patience=2, epochs=50, learning_rate=1e-9)
    trainee = LinearTrainee(train, NAMES, config, torch.device("cpu"))
    figures = []
    for number in range(200):
        trainee.step(number)
        figures.append(trainee.measure()["held_out_top1"])
        if trainee.has_converged:
            break
    assert len(figures) >= 3
    assert max(figures) == figures[-3]  # two without a gain after the best
    restored = LinearTrainee(train, NAMES, config, torch.device("cpu"))
    restored.restore(trainee.state())
    assert restored.has_converged


def test_held_out_rows_are_a_tenth_of_each_class(train: actstore.Split) -> None:
    rows, held_out = hold_out(train, NAMES, CONFIG)
    assert np.bincount(held_out[:, 1]).tolist() == [3] * 6
    assert sorted([*rows[:, 0], *held_out[:, 0]]) == list(range(180))
    assert [train.classes[train.labels[row]] for row in held_out[:, 0]] == [NAMES[place] for place in held_out[:, 1]]


def test_bad_input_is_named(tmp_path: Path) -> None:
    store = actstore.from_arrays(
        tmp_path / "y.zarr", {"train": (np.ones((3, 4), np.float32), np.array([0, 0, 1]))}, classes=["a", "b", "c"]
    )
    with pytest.raises(InvalidInputError, match="class 'b' has one row; at least two are needed"):
        train_on_rows(LinearTrainee, "oracle", store["train"], ["a", "b"], tmp_path / "run", LinearConfig())
    with pytest.raises(InvalidInputError, match="class 'c' has no rows"):
        train_on_rows(LinearTrainee, "oracle", store["train"], ["a", "c"], tmp_path / "run", LinearConfig())

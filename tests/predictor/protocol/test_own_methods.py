"""Methods of one's own, and what is said where they or their arguments are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import actstore
import baselines
import predictor
from actstore.errors import InvalidInputError
from baselines.ridge import Ridge

HALVES = predictor.CategorySplit(("a", "b"), ("c", "d"))
MEASURES: list[Callable[..., Any]] = [predictor.evaluate, predictor.run_sessions, predictor.run_episodes]


class NearestMean(predictor.Method):
    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return -torch.cdist(queries, support.mean(1))


class Learnt(NearestMean):
    """Its scores carry gradients."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(8))

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return super().novel_scores(queries * self.weight, support)


class Joint(predictor.JointMethod):
    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return -torch.cdist(queries, torch.cat([self.base.means, support.mean(1)]))


class NeedsMore(NearestMean):
    def __init__(self, rate: float) -> None:
        self.rate = rate


@pytest.fixture
def store(tmp_path: Path) -> actstore.ActivationStore:
    random, labels = np.random.default_rng(0), np.arange(4).repeat(6)
    splits = {name: (random.random((24, 8), dtype=np.float32), labels) for name in ("train", "val")}
    return actstore.from_arrays(tmp_path / "x.zarr", splits, classes=["a", "b", "c", "d"])


def test_a_method_is_called_as_its_own_class() -> None:
    class Mine(Ridge):
        pass

    assert [NearestMean.name, Joint.name, Mine.name] == ["NearestMean", "Joint", "Mine"]
    assert Ridge.name != "Ridge"


@pytest.mark.parametrize("measure", MEASURES)
def test_swapped_arguments_are_named(store: actstore.ActivationStore, measure: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"store.*CategorySplit"):
        measure(NearestMean(), HALVES, store)


def test_no_store_to_time(store: actstore.ActivationStore) -> None:
    with pytest.raises(InvalidInputError, match=r"store.*NearestMean"):
        baselines.time_inference(NearestMean(), backbone="none")  # type: ignore[arg-type]


def test_scores_may_carry_gradients(store: actstore.ActivationStore) -> None:
    assert predictor.evaluate(Learnt(), store, HALVES, shots=1, draws=2).records
    assert predictor.run_sessions(Learnt(), store, HALVES, way=1, shots=1, draws=2).records
    assert predictor.run_episodes(Learnt(), store, HALVES, way=2, shots=1, tasks=2).records


@pytest.mark.parametrize("measure", MEASURES)
def test_a_class_that_needs_arguments_is_named(store: actstore.ActivationStore, measure: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInputError, match="NeedsMore"):
        measure(NeedsMore, store, HALVES, shots=1)


def test_drawn_rows_are_taken(store: actstore.ActivationStore) -> None:
    base = predictor.BaseCategories.of_split(store["train"], HALVES.base)
    half = base.draw(0.5)
    assert torch.equal(base.take(half), base.take(half.rows))

"""A store whose classes can be told apart, and support drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import actstore
from actstore.streams.sampling import draw_support
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.category_split import CategorySplit

SPLIT = CategorySplit(("c4", "c0", "c2", "c5"), ("c1", "c3"))
DIM = 16


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread: None) -> None:
    """For all tests of this package."""


@pytest.fixture
def train(tmp_path: Path) -> actstore.Split:
    """30 rows of each of six classes, shuffled, around centres of their own; never negative, like activations."""
    random = np.random.default_rng(3)
    labels = random.permutation(np.repeat(np.arange(6), 30))
    centres = 2 * random.random((6, DIM))
    rows = np.abs(centres[labels] + 0.4 * random.standard_normal((len(labels), DIM))).astype(np.float32)
    names = [f"c{label}" for label in range(6)]
    store = actstore.from_arrays(
        tmp_path / "x.zarr", {"train": (rows, labels)}, classes=names, chunk_rows=64, dtype="f4"
    )
    return store["train"]


@pytest.fixture
def queries() -> torch.Tensor:
    return torch.rand(11, DIM, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def base(train: actstore.Split) -> BaseCategories:
    return BaseCategories.of_split(train, SPLIT.base)


@pytest.fixture
def draw(train: actstore.Split) -> Callable[..., torch.Tensor]:
    def make(shots: int, number: int = 0) -> torch.Tensor:
        labels = np.array([train.class_index.position(name) for name in SPLIT.novel])
        rows = draw_support(train.class_index, labels, shots, 0, number)
        return train.to_torch(rows.ravel(), dtype=torch.float32).view(*rows.shape, DIM)

    return make

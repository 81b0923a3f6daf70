"""A small store of separable classes, read only, and phis that are not the identity any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import actstore
from predictor.phi.network import Phi, PhiSpec
from predictor.protocol.category_split import CategorySplit

DIM, CLASSES = 16, tuple(f"c{number}" for number in range(10))


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread: None) -> None:
    """For all tests of this package."""


@pytest.fixture(scope="session")
def categories() -> CategorySplit:
    """The order is not that of the store."""
    return CategorySplit(("c6", "c0", "c2", "c1", "c4", "c5", "c3"), ("c9", "c7", "c8"))


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Rows around a centre per class, never negative, as activations are; labels are shuffled."""

    def make(per_class: int, seed: int, dim: int = DIM, classes: int = len(CLASSES)) -> Any:
        random = np.random.default_rng(seed)
        centres = 2 * np.random.default_rng(5).random((classes, dim))
        labels = random.permutation(np.repeat(np.arange(classes), per_class))
        rows = np.abs(centres[labels] + 0.5 * random.standard_normal((len(labels), dim)))
        return rows.astype(np.float32), labels

    return make


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, make_rows: Any) -> actstore.ActivationStore:
    """20 train and 8 val rows of each of ten classes; nothing may write to it but the cache of its means."""
    path = tmp_path_factory.mktemp("predictor") / "x.zarr"
    splits = {"train": make_rows(20, 0), "val": make_rows(8, 1)}
    return actstore.from_arrays(path, splits, classes=CLASSES, chunk_rows=64, dtype="f4")


@pytest.fixture
def make_phi() -> Callable[..., Phi]:
    """A phi some way from its start, in evaluation mode."""

    def make(kind: Any = "phi2", dim: int = DIM, seed: int = 0, strength: float = 0.1, **options: Any) -> Phi:
        phi = Phi(PhiSpec(kind, dim, **options))
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in phi.parameters():
                parameter.add_(strength * torch.randn(parameter.shape, generator=random))
        return phi.eval().requires_grad_(False)

    return make

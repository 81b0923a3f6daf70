"""A store with a column of every type, for the tests of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import actstore
from actstore.upkeep.verify import verify_store

VALUES = np.random.default_rng(1).random((60, 6)).astype(np.float32)

COLUMNS: dict[str, Any] = {
    "area": np.where(np.arange(60) % 5, np.arange(60) / 7, np.nan),
    "width": np.arange(60) * 10**15,
    "source": np.array([("web", "", "größe, 'x'")[row % 3] for row in range(60)], dtype=object),
    "date": np.array(["NaT", *(f"2024-01-{day % 28 + 1:02d}" for day in range(58)), "2025-02-03T04:05:06.7"], "M8[us]"),
    "keep": np.arange(60) % 2 == 0,
}

IDS = [f"image{row}.jpg" for row in range(60)]


def make(path: Path, columns: dict[str, Any] = COLUMNS) -> actstore.ActivationStore:
    labels = np.arange(60) % 3
    return actstore.from_arrays(path, {"train": (VALUES, labels, IDS, columns)}, classes=["a", "b", "c"])


def same_columns(store: actstore.ActivationStore, names: Any = tuple(COLUMNS), expected: Any = COLUMNS) -> None:
    found = store["train"].columns
    assert list(found) == list(names)
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name])
        assert found[name].dtype == np.asarray(expected[name]).dtype, name
    assert verify_store(store) == []

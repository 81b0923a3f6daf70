"""Rows of the classes of a split, as methods and tasks need them: numbers, activations, means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.streams.sampling import generator

SIGN_ROWS = 1000
Rows = NDArray[np.int64]  # row numbers of a split


def rows_of(split: Split, names: Sequence[str], most: int | None = None) -> tuple[Rows, Rows]:
    """Rows of these classes, and for each the position of its class among them; at most `most`, ascending."""
    index = split.class_index
    return join_groups([index.rows(index.position(name)) for name in names], most)


def join_groups(groups: Sequence[Rows], most: int | None = None) -> tuple[Rows, Rows]:
    """Rows of all groups, and for each the number of its group. Of more than `most` a random sample in their order: the
    first ones would be of the first groups alone."""
    rows = np.concatenate([*groups, np.empty(0, np.int64)])
    targets = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    if most is None or len(rows) <= most:
        return rows, targets
    kept = np.sort(generator(0, 0).choice(len(rows), most, replace=False))
    return rows[kept], targets[kept]


def take_float(split: Split, rows: NDArray[Any]) -> Tensor:
    """(n, dim) float32."""
    return split.to_torch(rows, dtype=torch.float32)


def is_signed(split: Split, names: Sequence[str]) -> bool:
    """Whether activations of these classes may be negative, as transformers' are: nearly every row is, so some tell."""
    return bool((take_float(split, rows_of(split, names, SIGN_ROWS)[0]) < 0).any())


def class_means(split: Split, names: Sequence[str]) -> Tensor:
    """(n, dim) mean activations of these classes; computed first where the store has none yet."""
    index = split.class_index
    labels = [index.position(name) for name in names]
    if (index.counts[labels] == 0).any():
        empty = names[int(np.flatnonzero(index.counts[labels] == 0)[0])]
        raise InvalidInputError(f"class {empty!r} has no rows in {split.path}, so it has no mean; leave it out")
    return torch.from_numpy(split.means()[labels])

"""Rows that a search is limited to: gathered where they are few, masked where they are many."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.search.table import RowTable

_GATHERED_SHARE = 0.3  # share of the rows below which gathering them is no slower than passing over all
Rows = NDArray[np.int64]  # ascending, distinct
Mask = NDArray[np.bool_]


class SelectedRows(RowTable):
    """Some rows of a table as one of their own; row i of it is row rows[i] there."""

    def __init__(self, table: RowTable, rows: Rows) -> None:
        self.split, self.whole, self.rows = None, table, rows
        self.shape = (len(rows), table.dim)

    @property
    def block_rows(self) -> int | None:
        return None

    @property
    def dtype(self) -> torch.dtype:
        return self.whole.dtype

    def read(self, start: int, stop: int) -> Tensor:
        chosen = self.rows[start:stop]
        if len(chosen) and chosen[-1] - chosen[0] == len(chosen) - 1:
            return self.whole.read(int(chosen[0]), int(chosen[-1]) + 1)
        return self.whole.take(chosen)

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        return self.whole.take(self.rows[rows])

    def in_memory(self) -> Tensor | None:
        return None

    def lengths(self) -> Tensor:
        return self.whole.lengths()[torch.from_numpy(self.rows)]

    def scales(self) -> Tensor:
        return self.whole.scales()[torch.from_numpy(self.rows)]


def parse_rows(rows: Any, count: int) -> Rows:
    """Ascending, distinct rows of a table of so many: what compiled loops look up unchecked."""
    given = np.asarray(rows)
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise InvalidInputError(f"rows must be whole numbers (n,), got {given.dtype} {given.shape}")
    parsed: Rows = np.ascontiguousarray(given, np.int64)
    if len(parsed) and (parsed[0] < 0 or parsed[-1] >= count or bool((parsed[1:] <= parsed[:-1]).any())):
        raise InvalidInputError(f"rows must ascend from 0 to below {count:,} without repetition")
    return parsed


def are_few(rows: Rows, table: RowTable) -> bool:
    return len(rows) < _GATHERED_SHARE * len(table)


def mask_of(rows: Rows, count: int) -> Mask:
    """(count,) whether a row is one of them."""
    mask = np.zeros(count, bool)
    mask[rows] = True
    return mask

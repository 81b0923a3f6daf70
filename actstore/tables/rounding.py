"""What rows lose on their way into a store of a narrower type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.compute.tensors import borrow, convert_into
from actstore.spec import Dtype
from actstore.tables.row_source import RowSource, Table

_PIECE_ROWS = 512


def natural_dtype(tables: Mapping[str, Table]) -> Dtype:
    """The type that keeps rows as they came: f2 for fp16 and 8-bit integers, f4 for everything else.

    float64 and long integers have no type of their own in a store: f4, and `Rounding` says what that cost.
    """
    return "f2" if all(is_exact(table.activations.dtype, "f2") for table in tables.values()) else "f4"


def is_exact(dtype: np.dtype[Any], stored: str) -> bool:
    """Whether every value of a type is one of the stored type."""
    return bool(np.can_cast(dtype.newbyteorder("="), stored, "safe"))


class Rounding:
    """The largest rounding error of a value, relative to the largest value of its row; None: nothing was rounded."""

    def __init__(self) -> None:
        self.largest: float | None = None

    def watch(self, tables: Mapping[str, Table], stored: str) -> dict[str, Table]:
        """The same tables; what is read of them is measured where the stored type may change it.

        Types that are no real numbers pass as they are: the writer refuses them with a reason of its own.
        """
        return {
            name: table
            if is_exact(table.activations.dtype, stored) or table.activations.dtype.kind not in "fiub"
            else replace(table, activations=_Watched(table.activations, stored, self))
            for name, table in tables.items()
        }

    def measure(self, values: NDArray[Any], stored: str) -> None:
        """values (n, dim)"""
        for start in range(0, len(values), _PIECE_ROWS):
            piece = values[start : start + _PIECE_ROWS]
            kept = np.empty(piece.shape, stored)
            convert_into(kept, piece)
            # a difference of two close numbers of one type is exact, so fp32 is wide enough for fp32
            before = borrow(np.ascontiguousarray(piece, np.float32 if piece.dtype == np.float32 else np.float64))
            error = (torch.from_numpy(kept).to(before.dtype) - before).abs_().amax(dim=1) / before.abs().amax(dim=1)
            # NaN is a row of zeros, or one that is not finite: the writer refuses that with a reason of its own
            self.largest = max(self.largest or 0.0, float(error.nan_to_num(0.0, 0.0).max()))


class _Watched:
    def __init__(self, rows: RowSource, stored: str, rounding: Rounding) -> None:
        self.shape, self.dtype = rows.shape, rows.dtype
        self._rows, self._stored, self._rounding = rows, stored, rounding

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        for block in self._rows.blocks(start, stop):
            self._rounding.measure(block, self._stored)
            yield block

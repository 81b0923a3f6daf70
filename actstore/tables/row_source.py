"""What every source of rows offers, and arrays in memory as the simplest one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actstore.layout.columns import Column

BLOCK_BYTES = 8 << 20  # read at a time: fits the cache, so that conversion does not wait for memory


class RowSource(Protocol):
    """(rows, dim) values that are read in order, from any row on, without ever being whole in memory."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """Consecutive (n, dim) blocks; a block may be overwritten when the next one is drawn."""
        ...


@dataclass(frozen=True)
class Table:
    """A source with what belongs to its rows: labels (n,) as numbers or names, ids (n,), columns (n,) by name."""

    activations: RowSource
    labels: NDArray[Any] | None = None
    ids: Sequence[str] | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)


class ArrayRows:
    """An array or memory map."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values
        self.shape = (values.shape[0], values.shape[1])
        self.dtype = values.dtype

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        step = block_rows(self.shape[1], self.dtype)
        for position in range(start, stop, step):
            yield self._values[position : min(position + step, stop)]


def block_rows(dim: int, dtype: np.dtype[Any]) -> int:
    return max(1, BLOCK_BYTES // (dim * dtype.itemsize))

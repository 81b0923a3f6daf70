"""What every source of rows offers, and the two shapes most have: what can be sliced, and what comes in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actstore.layout.columns import Column

if TYPE_CHECKING:
    import pyarrow

BLOCK_BYTES = 8 << 20  # read at a time: fits the cache, so that conversion does not wait for memory


class RowSource(Protocol):
    """(rows, dim) values that are read in order, from any row on, without ever being whole in memory."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...

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


@dataclass(frozen=True)
class ArrayFile:
    """shapes: of every array in the file, by name. rows: opens a large one. values: loads a small one."""

    shapes: Mapping[str, tuple[int, ...]]
    rows: Callable[[str], RowSource]
    values: Callable[[str], NDArray[Any]]
    columns: Mapping[str, Callable[[], Column]] = field(default_factory=dict)  # what is plainly a column, unasked for


@dataclass(frozen=True)
class SlicedRows:
    """Rows of what gives any slice of them; `opened` opens it before the first and closes it after the last."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    opened: Callable[[], AbstractContextManager[Callable[[slice], NDArray[Any]]]]

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        step = block_rows(self.shape[1], self.dtype)
        with self.opened() as read:
            for position in range(start, stop, step):
                yield read(slice(position, min(position + step, stop)))


def array_rows(values: NDArray[Any]) -> SlicedRows:
    """An array or memory map."""
    return SlicedRows((values.shape[0], values.shape[1]), values.dtype, lambda: nullcontext(values.__getitem__))


@dataclass(frozen=True)
class BatchedRows:
    """Rows of a table of arrow that is read from its beginning. batches: by how many rows to read at a time."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    batches: Callable[[int], Iterable[pyarrow.RecordBatch]]
    values: Callable[[pyarrow.RecordBatch], NDArray[Any]]

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        position = 0
        for batch in self.batches(block_rows(self.shape[1], self.dtype)):
            first, last = max(start - position, 0), min(stop - position, len(batch))
            if first < last:
                yield self.values(batch.slice(first, last - first))
            position += len(batch)
            if position >= stop:
                return


def block_rows(dim: int, dtype: np.dtype[Any]) -> int:
    return max(1, BLOCK_BYTES // (dim * dtype.itemsize))

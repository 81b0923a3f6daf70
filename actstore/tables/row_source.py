"""What every source of rows offers, the two shapes most have (what can be sliced, and what comes in batches), rows of a
split among them, and what rows lose on their way into a store of a narrower type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.compute.tensors import borrow, convert_into
from actstore.layout.columns import Column
from actstore.spec import Dtype
from actstore.split import Split

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


class ChosenRows:
    """Chosen rows of a split in their order as a source; all of them where rows is None."""

    def __init__(self, split: Split, rows: NDArray[np.int64] | None = None) -> None:
        self._split, self._rows = split, rows
        self.shape = (len(split) if rows is None else len(rows), split.dim)
        self.dtype = split.dtype

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        step = block_rows(self.shape[1], self.dtype)
        for position in range(start, stop, step):
            end = min(position + step, stop)
            if self._rows is not None:
                yield self._split.rows.take(self._rows[position:end])
            else:
                yield self._split.rows.read(position, end)
                self._split.rows.release(position, end)


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


def split_table(split: Split, rows: NDArray[np.int64] | None = None) -> Table:
    """Rows of a split with their labels, as numbers of its class list, columns, and ids where it has any."""
    labels = split.labels
    ids: Sequence[str] | None = split.ids if split.committed.has_ids else None
    columns = {name: split.columns.stored(name) for name in split.columns}
    if rows is None:
        return Table(ChosenRows(split), labels, ids, columns)
    ids = None if ids is None else [ids[row] for row in rows.tolist()]
    columns = {name: column.take(rows) for name, column in columns.items()}
    return Table(ChosenRows(split, rows), labels[rows], ids, columns)


def block_rows(dim: int, dtype: np.dtype[Any]) -> int:
    return max(1, BLOCK_BYTES // (dim * dtype.itemsize))


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

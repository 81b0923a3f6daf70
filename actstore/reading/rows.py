"""What every reader of a split offers, and what readers that copy rows out of files have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actstore.layout.chunk_file import by_chunk
from actstore.reading.checked_chunks import ChunkChecks
from actstore.spec import StoreSpec
from actstore.storage.place import Place


class Rows(Protocol):
    """Random and sequential access to (rows, dim) values."""

    shape: tuple[int, int]
    decoded_rows: int | None  # that are decoded together; None: any range is as good as another
    in_memory: NDArray[Any] | None = None  # (rows, dim) where all of them are mapped and the page cache can hold them

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) row ids -> (n, dim)."""

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]:
        """As `take`, some at a time where that keeps memory small: which of them, and their values."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """(stop - start, dim), which may be a read-only view."""

    def release(self, start: int, stop: int) -> None:
        """These rows are not needed soon."""

    def scan(self, start: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
        """Rows in order, at most `step` at a time, for passes over whole chunks: each is checked on the way, and what
        is wrong with a chunk may be raised after its first rows were handed out."""

    def check(self, chunks: Iterable[int]) -> None:
        """Refuse damaged chunks; one that was found sound is not looked at again."""


class FetchedRows(Rows):
    """Rows in memory of their own: nothing stays mapped. Chunks are checked whenever they are read as a whole."""

    def __init__(self, array: Place, spec: StoreSpec, rows: int, checks: ChunkChecks) -> None:
        self.shape = (rows, spec.dim)
        self.dtype = np.dtype("<" + spec.dtype)
        self.decoded_rows = spec.chunk_rows
        self._array, self._spec, self._checks = array, spec, checks

    def check(self, chunks: Iterable[int]) -> None:
        """Pieces with a crc of their own are checked whenever they are read; whole chunks are where they have none, or
        where an append has extended them, so that a file from before it would do as well."""
        for chunk in chunks:
            if self._spec.is_raw or self._checks.was_rewritten(chunk):
                self._checks.check_file(chunk)

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]:
        yield slice(0, len(rows)), self.take(rows)

    def scan(self, start: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
        for _, first, last in by_chunk(start, stop, self._spec.chunk_rows):
            block = self.read(first, last)
            for row in range(0, len(block), step):
                yield block[row : row + step]

    def release(self, start: int, stop: int) -> None:
        """Nothing is held."""


class CheckedRows:
    """Rows of which every chunk is checked before it is first read from: `actstore.open(..., checked=True)`."""

    in_memory: NDArray[Any] | None = None  # a look into memory would not be checked

    def __init__(self, rows: Rows, chunk_rows: int) -> None:
        self._rows, self._chunk_rows = rows, chunk_rows
        self.shape, self.decoded_rows = rows.shape, rows.decoded_rows

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        self.check(np.unique(rows // self._chunk_rows).tolist())
        return self._rows.take(rows)

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]:
        self.check(np.unique(rows // self._chunk_rows).tolist())
        return self._rows.pieces(rows)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        self.check(range(start // self._chunk_rows, -(-stop // self._chunk_rows)) if stop > start else ())
        return self._rows.read(start, stop)

    def scan(self, start: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
        return self._rows.scan(start, stop, step)

    def check(self, chunks: Iterable[int]) -> None:
        self._rows.check(chunks)

    def release(self, start: int, stop: int) -> None:
        self._rows.release(start, stop)

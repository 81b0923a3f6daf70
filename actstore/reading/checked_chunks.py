"""Chunks of rows compared with the ledger, each once for as long as a split is open."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError
from actstore.layout.chunk_file import chunk_path
from actstore.layout.ledger import LEDGER, Entry, read_ledger, read_lines
from actstore.storage.atomic_file import crc32c
from actstore.storage.place import Place

if TYPE_CHECKING:
    from actstore.reading.reader import Rows


class ChunkChecks:
    """Which chunks of a split were found to be those that its ledger names."""

    def __init__(self, array: Place, rows: int, chunk_rows: int) -> None:
        self.chunk_rows = chunk_rows
        self._array, self._rows = array, rows
        self._done = np.zeros(-(-rows // chunk_rows), bool)
        self._entries: list[Entry] | None = None
        self._lock = threading.Lock()

    def is_done(self, chunk: int) -> bool:
        return bool(self._done[chunk])

    def found_sound(self, chunks: slice) -> None:
        """Somebody else has compared them."""
        self._done[chunks] = True

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """A range of rows, chunk by chunk: (chunk, first row, row after the last)."""
        while start < stop:
            chunk = start // self.chunk_rows
            edge = min(stop, (chunk + 1) * self.chunk_rows)
            yield chunk, start, edge
            start = edge

    def compare(self, chunk: int, crc: int, values: NDArray[Any]) -> None:
        """values: all rows of the chunk, padding included, whose crc32c is `crc`."""
        if crc != self._entry(chunk).crc and not self._is_of_another_moment(chunk, crc, values):
            raise DamagedError(
                f"chunk {chunk} of split {self._array.parent.name!r} is damaged: the crc32c of the rows in "
                f"{chunk_path(self._array, chunk)} is {crc:08x}, the ledger says {self._entry(chunk).crc:08x}; "
                f"run `actstore verify {self._array.parent.parent} --repair`"
            )
        self._done[chunk] = True

    def _entry(self, chunk: int) -> Entry:
        with self._lock:
            if self._entries is None:
                entries = read_ledger(self._array)[0]
                if len(entries) < len(self._done):
                    raise DamagedError(
                        f"{self._array / LEDGER} names {len(entries)} chunks, expected {len(self._done)}; "
                        f"run `actstore verify {self._array.parent.parent}`"
                    )
                self._entries = entries
        return self._entries[chunk]

    def _is_of_another_moment(self, chunk: int, crc: int, values: NDArray[Any]) -> bool:
        """An append rewrites the last chunk: what is open may be the chunk before it, or after it with a ledger that
        does not say so yet."""
        needed = min(self.chunk_rows, self._rows - chunk * self.chunk_rows)
        lines = [line for line in read_lines(self._array)[0] if line.chunk == chunk and line.rows >= needed]
        if any(line.crc == crc for line in lines):
            return True
        for line in lines:
            cut = values.copy()
            cut[line.rows :] = 0
            if line.rows < self.chunk_rows and crc32c(cut) == line.crc:
                return True
        return False


class CheckedRows:
    """Rows of which every chunk is checked before it is first read from: `actstore.open(..., checked=True)`."""

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


def scan_chunks(rows: Rows, chunk_rows: int, start: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
    """`Rows.scan` where a chunk is checked whenever it is read as a whole."""
    while start < stop:
        edge = min(stop, (start // chunk_rows + 1) * chunk_rows)
        block = rows.read(start, edge)
        for first in range(0, len(block), step):
            yield block[first : first + step]
        start = edge

"""Chunks of rows compared with the ledger, each once for as long as a split is open."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError
from actstore.layout.chunk_file import chunk_path
from actstore.layout.ledger import LEDGER, Entry, read_ledger, read_lines
from actstore.storage.atomic_file import crc32c
from actstore.storage.place import Place


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

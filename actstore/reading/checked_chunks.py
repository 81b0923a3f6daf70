"""Chunks of rows compared with the ledger, each once for as long as a split is open."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError
from actstore.layout.chunk_file import chunk_path, decode_chunk
from actstore.layout.ledger import LEDGER, Entry, committed_entries, read_ledger, read_lines
from actstore.layout.replacement import explained, require_same_split
from actstore.spec import SplitSpec, StoreSpec
from actstore.storage.atomic_file import crc32c
from actstore.storage.place import Place, read_file


class ChunkChecks:
    """Which chunks of a split were found to be those that its ledger names.

    committed: what the reader knows of the split; the ledger counts as far as it was written then, and must be the one
    of that content. Without it, for writers, all of the ledger counts.
    """

    def __init__(self, array: Place, spec: StoreSpec, rows: int, committed: SplitSpec | None = None) -> None:
        self.chunk_rows = spec.chunk_rows
        self._array, self._spec, self._rows, self._committed = array, spec, rows, committed
        self._done = np.zeros(-(-rows // spec.chunk_rows), bool)
        self._entries: list[Entry] | None = None
        self._lock = threading.Lock()
        self._stamp = self._look()

    def require_same_split(self) -> None:
        """After a read from a file that is opened anew each time: it was still this split's. On a disk, where looking
        at the split's metadata costs little; it is read only where it was written since."""
        if self._committed is not None and (stamp := self._look()) != self._stamp:
            require_same_split(self._array.parent, self._spec, self._committed)
            self._stamp = stamp

    def _look(self) -> tuple[int, ...]:
        """Tells one version of the split's metadata from another."""
        folder = self._array.local_path
        if folder is None:
            return ()
        try:
            facts = (folder.parent / "zarr.json").stat()
        except OSError:
            return ()
        return facts.st_ino, facts.st_mtime_ns, facts.st_size

    def explained(self) -> AbstractContextManager[None]:
        """Around a read: a split that was replaced is not called damaged."""
        if self._committed is None:
            return nullcontext()
        return explained(self._array.parent, self._spec, self._committed)

    def entries(self) -> list[Entry]:
        """One for every chunk that the reader knows."""
        with self._lock:
            if self._entries is None:
                if self._committed is None:
                    entries = read_ledger(self._array)[0]
                else:
                    entries = committed_entries(self._array, self._spec, self._committed)
                if len(entries) < len(self._done):
                    raise DamagedError(
                        f"{self._array / LEDGER} names {len(entries)} chunks, expected {len(self._done)}; "
                        f"run `actstore verify {self._array.parent.parent}`"
                    )
                self._entries = entries[: len(self._done)]
            return self._entries

    def was_rewritten(self, chunk: int) -> bool:
        """Whether an append has extended the chunk: a file of it from before would pass for sound by itself."""
        if self._committed is None:
            return True
        earlier = self._committed.history[:-1]
        return any(rows // self.chunk_rows == chunk and rows % self.chunk_rows for rows, _ in earlier)

    def require_named(self, chunk: int, said: int, values: NDArray[Any]) -> None:
        """said: the crc32c at the end of a chunk's file, which is not the committed one; values are read only where no
        line of the ledger names it either."""
        if not any(line.crc == said for line in self._lines(chunk)):
            self.compare(chunk, crc32c(values), values)

    def check_file(self, chunk: int) -> None:
        """Read a whole chunk and compare it with the ledger, if that was not done yet."""
        if self.is_done(chunk):
            return
        file = chunk_path(self._array, chunk)
        try:
            values = decode_chunk(self._spec, read_file(file))
        except FileNotFoundError:
            raise DamagedError(f"chunk {file} is missing; run `actstore verify`") from None
        except (ValueError, RuntimeError) as error:
            raise DamagedError(f"chunk {file} is corrupt ({error}); run `actstore verify`") from error
        self.compare(chunk, crc32c(values), values)

    def is_done(self, chunk: int) -> bool:
        return bool(self._done[chunk])

    def compare(self, chunk: int, crc: int, values: NDArray[Any]) -> None:
        """values: all rows of the chunk, padding included, whose crc32c is `crc`."""
        with self.explained():
            named = self.entries()[chunk].crc
            if crc != named and not self._is_of_another_moment(chunk, crc, values):
                raise DamagedError(
                    f"chunk {chunk} of split {self._array.parent.name!r} is damaged: the crc32c of the rows in "
                    f"{chunk_path(self._array, chunk)} is {crc:08x}, the ledger says {named:08x}; "
                    f"run `actstore verify {self._array.parent.parent} --repair`"
                )
        self._done[chunk] = True

    def _lines(self, chunk: int) -> list[Entry]:
        """All of the ledger that tell of a chunk with the rows that are needed of it; none of another split's ledger,
        which may lie there by now."""
        lines = read_lines(self._array)[0]
        named = {(line.chunk, line.rows, line.crc) for line in lines}
        if any((entry.chunk, entry.rows, entry.crc) not in named for entry in self.entries()):
            return []
        needed = min(self.chunk_rows, self._rows - chunk * self.chunk_rows)
        return [line for line in lines if line.chunk == chunk and line.rows >= needed]

    def _is_of_another_moment(self, chunk: int, crc: int, values: NDArray[Any]) -> bool:
        """An append rewrites the last chunk: what is open may be the chunk before it, or after it with a ledger that
        does not say so yet."""
        lines = self._lines(chunk)
        if any(line.crc == crc for line in lines):
            return True
        for line in lines:
            cut = values.copy()
            cut[line.rows :] = 0
            if line.rows < self.chunk_rows and crc32c(cut) == line.crc:
                return True
        return False

"""Raw chunk files of one array mapped at consecutive addresses: one (rows, dim) array, no copies.

A range of addresses is reserved, then every chunk file is mapped over its part of the range with
MAP_FIXED, without its trailing crc. Chunks must fill whole memory pages.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.layout.chunk_file import by_chunk
from actstore.reading.checked_chunks import ChunkChecks
from actstore.reading.mapping import Mapping, announcing_helps
from actstore.spec import StoreSpec
from actstore.storage.atomic_file import extend_crc32c
from actstore.storage.folder_path import FolderPath

_CHECKED_BYTES = 1 << 20
_PIECE = 256  # rows: at most 512 MiB of mapped pages at a time


def can_map(chunk_bytes: int, chunks: int) -> bool:
    """Whole pages, a POSIX system, and fewer maps than the kernel's default limit of 65,530."""
    return chunk_bytes % mmap.PAGESIZE == 0 and sys.platform in ("linux", "darwin") and chunks < 60_000


class MappedRows:
    """Rows of a split as one read-only array backed by the page cache.

    Mapped pages count as resident in tools such as htop, though the kernel takes them back
    whenever it needs memory; `release` hands them back at once.
    """

    decoded_rows: int | None = None
    in_memory: NDArray[Any] | None = None

    def __init__(self, array: FolderPath, spec: StoreSpec, rows: int, checks: ChunkChecks) -> None:
        """Every chunk file must end in the crc that the ledger names: files of different moments are not mixed."""
        self._reserve(spec, rows, checks)
        for chunk, entry in enumerate(checks.entries()):
            said = self._mapping.map(chunk, f"{array}/c/{chunk}/0")  # as text: a path takes longer to make than to map
            if said != entry.crc:
                checks.require_named(chunk, said, self._rows_of_chunk(chunk))
        self.in_memory = None if self._announces else self._values

    def _reserve(self, spec: StoreSpec, rows: int, checks: ChunkChecks) -> None:
        self.shape = (rows, spec.dim)
        self.checks = checks
        self.dtype = np.dtype("<" + spec.dtype)
        self._row_bytes, chunks = spec.row_bytes, -(-rows // spec.chunk_rows)
        self._mapping = Mapping(chunks, spec.chunk_bytes)
        # with the padding of the last chunk, which its checksum covers
        self._whole = np.asarray(self._mapping).view(self.dtype).reshape(-1, spec.dim)
        self._values = self._whole[:rows]
        self._announces = announcing_helps(rows * self._row_bytes)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) row ids -> (n, dim)."""
        if self._announces:
            self._mapping.announce(rows, self._row_bytes)
        return self._values.take(rows, axis=0)

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]:
        """As `take`, a few rows at a time and with few pages mapped: a fault may map 2 MiB around its row."""
        for start in range(0, len(rows), _PIECE):
            part = rows[start : start + _PIECE]
            yield slice(start, start + len(part)), self.take(part)
            self.release(0, self.shape[0])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """(stop - start, dim), a read-only view."""
        view: NDArray[Any] = self._values[start:stop]
        return view

    def scan(self, start: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
        """Rows in order, at most `step` at a time. A piece is checked when the next is asked for: what was
        used just now is still in the cache, so memory is read once for both (20 GB/s, against 12 if taken before).
        Each chunk is compared with the ledger after its last piece."""
        crc = 0
        for first in range(start, stop, step):
            last = min(stop, first + step)
            yield self._values[first:last]
            for chunk, begin, end in by_chunk(first, last, self.checks.chunk_rows):
                if self.checks.is_done(chunk):
                    continue
                if begin == start:
                    crc = self._crc(chunk * self.checks.chunk_rows, begin)
                elif begin % self.checks.chunk_rows == 0:
                    crc = 0
                crc = self._crc(begin, end, crc)
                if end == stop:
                    crc = self._crc(end, (chunk + 1) * self.checks.chunk_rows, crc)
                if end == stop or end % self.checks.chunk_rows == 0:
                    self._compare(chunk, crc)

    def check(self, chunks: Iterable[int]) -> None:
        """Compare chunks with the ledger, those that were not yet; DamagedError names the first that differs."""
        size = self.checks.chunk_rows
        for chunk in chunks:
            if not self.checks.is_done(chunk):
                self._compare(chunk, self._crc(chunk * size, (chunk + 1) * size))

    def _crc(self, start: int, stop: int, crc: int = 0) -> int:
        """Extended by rows, padding included; a few at a time, since other Python threads wait meanwhile."""
        step = max(1, _CHECKED_BYTES // self._row_bytes)
        for first in range(start, stop, step):
            crc = extend_crc32c(crc, self._whole[first : min(stop, first + step)].view(np.uint8))
        return crc

    def _compare(self, chunk: int, crc: int) -> None:
        self.checks.compare(chunk, crc, self._rows_of_chunk(chunk))

    def _rows_of_chunk(self, chunk: int) -> NDArray[Any]:
        """(chunk_rows, dim), padding included."""
        size = self.checks.chunk_rows
        whole: NDArray[Any] = self._whole[chunk * size : (chunk + 1) * size]
        return whole

    def release(self, start: int, stop: int) -> None:
        """Unmap the pages of these rows from this process; views stay valid and fault back in."""
        if start < stop:
            self._mapping.release(start * self._row_bytes, stop * self._row_bytes)

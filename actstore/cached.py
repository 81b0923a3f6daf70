"""Rows of a remote store through a local cache: a chunk is fetched when first touched, and mapped from then on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.cache import ChunkCache
from actstore.chunkfile import chunk_path, crc32c
from actstore.encoding import decode_chunk
from actstore.errors import DamagedError
from actstore.ledger import read_ledger
from actstore.mapped import MappedRows
from actstore.objects import ObjectPath
from actstore.places import read_span, size_of
from actstore.ranged import RangedRows
from actstore.spec import StoreSpec
from actstore.unmapped import ZarrRows

_FETCHES = 4  # chunks at a time: four times 64 MiB of memory


class CachedRows(MappedRows):
    """As MappedRows, over the chunks that are here; the others come first, or where the cache is full, row by row."""

    def __init__(self, remote: RangedRows | ZarrRows, array: ObjectPath, spec: StoreSpec, rows: int) -> None:
        assert array.cache is not None
        self._remote, self._array, self._spec = remote, array, spec
        entries, _ = read_ledger(array)
        self._crcs = [entry.crc for entry in entries][: -(-rows // spec.chunk_rows)]
        split = array.parent
        self._cache = ChunkCache(array.cache, str(split.parent), split.name, self._crcs, spec.chunk_bytes)
        self._here = np.zeros(len(self._crcs), bool)  # mapped
        self._full = False
        self._lock = threading.Lock()
        self._reserve(rows, spec.dim, spec.dtype, spec.chunk_rows)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) row ids -> (n, dim)."""
        chunks = rows // self._spec.chunk_rows
        if not self._here[chunks].all():
            self._bring(np.unique(chunks[~self._here[chunks]]))
            away = np.flatnonzero(~self._here[chunks])
            if len(away):
                out = np.empty((len(rows), self.shape[1]), self.dtype)
                out[away] = self._remote.take(rows[away])
                near = np.flatnonzero(self._here[chunks])
                out[near] = super().take(rows[near])
                return out
        return super().take(rows)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """(stop - start, dim), read-only."""
        chunks = np.arange(start // self._spec.chunk_rows, -(-stop // self._spec.chunk_rows))
        if not self._here[chunks].all():
            self._bring(chunks[~self._here[chunks]])
            if not self._here[chunks].all():
                return self._remote.read(start, stop)
        return super().read(start, stop)

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]:
        self._bring(np.unique(rows // self._spec.chunk_rows))  # side by side, not piece by piece
        yield from super().pieces(rows)

    def _bring(self, chunks: NDArray[np.int64]) -> None:
        """Map these chunks, fetching those that are not on disk yet, until the cache is full."""
        wanted = [chunk for chunk in chunks.tolist() if not self._here[chunk]]
        if wanted:
            with ThreadPoolExecutor(_FETCHES) as pool:
                list(pool.map(self._bring_one, wanted))

    def _bring_one(self, chunk: int) -> None:
        if self._cache.has(chunk) or self._fetch(chunk):
            with self._lock:
                if not self._here[chunk]:
                    self._mapping.map(chunk, self._cache.paths[chunk])
                    self._here[chunk] = True

    def _fetch(self, chunk: int) -> bool:
        if self._full:
            return False
        path = chunk_path(self._array, chunk)
        try:
            values = decode_chunk(self._spec, read_span(path, 0, size_of(path)))
            sound = crc32c(values) == self._crcs[chunk]
        except FileNotFoundError:
            raise DamagedError(f"chunk {path} is missing; run `actstore verify`") from None
        except (ValueError, RuntimeError) as error:
            raise DamagedError(f"chunk {path} is corrupt ({error}); run `actstore verify`") from error
        if not sound:
            raise DamagedError(f"chunk {path} is not the one its ledger names; run `actstore verify`")
        kept = self._cache.add(chunk, values, self._crcs[chunk])
        self._full = self._full or not kept
        return kept

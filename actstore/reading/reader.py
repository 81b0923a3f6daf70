"""How the rows of a split are read: mapped where that is possible, else by ranges of bytes, or through Zarr; of a
remote store also through a local cache, where a chunk is fetched when first touched and mapped from then on."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import CacheError, DamagedError, OutOfMapsError, StorageError
from actstore.layout.ledger import by_chunk, chunk_path, decode_units
from actstore.layout.metadata import require_chunks
from actstore.reading.mapped_rows import MappedRows, can_map
from actstore.reading.rows import Buffer, ChunkChecks, FetchedRows, Rows, read_chunk
from actstore.spec import SplitSpec, StoreSpec
from actstore.storage.atomic_file import CRC_BYTES, crc32c
from actstore.storage.object_path import CacheSpec, ChunkCache
from actstore.storage.place import Place

_FETCHES = 4  # chunks at a time: four times 64 MiB of memory


def open_rows(array: Place, spec: StoreSpec, rows: int, committed: SplitSpec | None = None) -> Rows:
    """committed: what the caller knows of the split, whose files must be of that moment, or of a later one. Writers,
    who hold the ledger, leave it out."""
    checks = ChunkChecks(array, spec, rows, committed)
    with checks.explained():
        return _open_rows(array, spec, rows, checks)


def _open_rows(array: Place, spec: StoreSpec, rows: int, checks: ChunkChecks) -> Rows:
    chunks = -(-rows // spec.chunk_rows)
    mappable = can_map(spec.chunk_bytes, chunks)
    if array.local_path is not None and spec.is_raw and mappable:
        with suppress(OutOfMapsError):
            return MappedRows(array.local_path, spec, rows, checks)
    if array.local_path is not None:  # of a bucket this would fetch whole chunks
        checks.entries()
        for chunk in filter(checks.was_rewritten, range(chunks)):
            checks.check_file(chunk)
    fetched = (RangedRows if spec.codec == "raw" else ZarrRows)(array, spec, rows, checks)
    if array.cache is None:
        return fetched
    if not mappable:
        warnings.warn(f"chunks of {array} are no whole memory pages, so they are not cached", stacklevel=2)
        return fetched
    try:
        return CachedRows(fetched, array, array.cache, spec, rows, checks)
    except OutOfMapsError:
        return fetched


class RangedRows(FetchedRows):
    """Random and sequential access to the rows of a split, fetching little more than what is asked for."""

    def __init__(self, array: Place, spec: StoreSpec, rows: int, checks: ChunkChecks) -> None:
        super().__init__(array, spec, rows, checks)
        inner = spec.shard_inner_rows
        index = 16 * (spec.chunk_rows // inner) + CRC_BYTES if inner else 0  # where each inner chunk lies
        self._file_bytes = spec.chunk_bytes + CRC_BYTES * (spec.chunk_rows // (inner or spec.chunk_rows)) + index
        self._unit = spec.shard_inner_rows or 1  # rows that are read together
        self._stride = self._unit * spec.row_bytes + (CRC_BYTES if spec.shard_inner_rows else 0)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) row ids -> (n, dim)."""
        out = np.empty((len(rows), self.shape[1]), self.dtype)
        wanted, back = np.unique(rows, return_inverse=True)
        chunks = wanted // self._spec.chunk_rows
        edges = np.flatnonzero(np.diff(chunks, prepend=-1, append=-1))
        parts = list(pairwise(edges.tolist()))
        distinct = np.empty_like(out, shape=(len(wanted), self.shape[1]))

        def fetch(part: tuple[int, int]) -> None:
            a, b = part
            self._take_from(int(chunks[a]), wanted[a:b] % self._spec.chunk_rows, distinct[a:b])

        list(self._array.map_parallel(fetch, parts))
        np.take(distinct, back, axis=0, out=out)
        return out

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """(stop - start, dim)."""
        out = np.empty((max(0, stop - start), self.shape[1]), self.dtype)
        for chunk, first, last in by_chunk(start, stop, self._spec.chunk_rows):
            before = chunk * self._spec.chunk_rows
            out[first - start : last - start] = self._read_from(chunk, first - before, last - before)
        return out

    def _take_from(self, chunk: int, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Some rows of a chunk, ascending -> out (n, dim)."""
        units, at = np.unique(rows // self._unit, return_inverse=True)
        starts = units * self._stride
        path = chunk_path(self._array, chunk)
        pieces = self._checked(path, lambda: path.read_ranges(starts.tolist(), (starts + self._stride).tolist()))
        data = np.frombuffer(b"".join(pieces), np.uint8)
        if len(data) != len(units) * self._stride:
            raise self._damaged(path)
        out[:] = self._rows_of(path, data)[at * self._unit + rows % self._unit]

    def _read_from(self, chunk: int, first: int, last: int) -> NDArray[Any]:
        """Rows first to last of a chunk -> (last - first, dim)."""
        unit = first // self._unit
        start, stop = unit * self._stride, -(-last // self._unit) * self._stride
        path = chunk_path(self._array, chunk)
        used = min(self._spec.chunk_rows, self.shape[0] - chunk * self._spec.chunk_rows)
        if not self._spec.shard_inner_rows and last - first == used:
            return self._read_whole(chunk)[:used]
        data = self._checked(path, lambda: path.read_span(start, stop))
        offset = unit * self._unit
        return self._rows_of(path, data)[first - offset : last - offset]

    def _read_whole(self, chunk: int) -> NDArray[Any]:
        """(chunk_rows, dim) of a raw chunk, against its own crc."""
        path = chunk_path(self._array, chunk)
        data = self._checked(path, lambda: path.read_span(0, self._spec.chunk_bytes + CRC_BYTES))
        return self._rows_of(path, data, self._spec.chunk_bytes)

    def _rows_of(self, path: Place, data: NDArray[np.uint8], checked: int = 0) -> NDArray[Any]:
        """Units of bytes -> (units * unit rows, dim). checked: bytes of a unit that is followed by a crc."""
        if self._spec.shard_inner_rows:
            checked = self._unit * self._spec.row_bytes
        try:
            if checked:
                data = decode_units(data, checked)
            return data.view(self.dtype).reshape(-1, self.shape[1])
        except ValueError as error:
            raise DamagedError(f"chunk {path} is corrupt ({error}); run `actstore verify`") from error

    def _checked(self, path: Place, fetch: Any) -> Any:
        """A file of another size, of a disk where that is asked quickly, is one of another layout."""
        with self._checks.explained():
            with suppress(FileNotFoundError, ValueError):  # ValueError: an empty file cannot be mapped
                if path.local_path is None or path.size() == self._file_bytes:
                    fetched = fetch()
                    self._checks.require_same_split()
                    return fetched
            raise self._damaged(path)

    def _damaged(self, path: Place) -> DamagedError:
        try:
            what = f"truncated: {path.size()} bytes, expected {self._file_bytes}"
        except FileNotFoundError:
            what = "missing"
        return DamagedError(f"chunk {path} is {what}; run `actstore verify`")


class ZarrRows(FetchedRows):
    """Zarr checks the crc of all that it decodes."""

    def __init__(self, array: Place, spec: StoreSpec, rows: int, checks: ChunkChecks) -> None:
        super().__init__(array, spec, rows, checks)
        from actstore.layout.zarr_arrays import open_array  # zarr takes a second to import

        self._zarr = open_array(array)
        if self._zarr.shape[0] < rows:  # Zarr would cut a slice short
            raise DamagedError(f"{array} holds {self._zarr.shape[0]} rows, expected {rows}; run `actstore verify`")

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) row ids -> (n, dim); each chunk is decoded once however the rows are ordered."""
        if not len(rows):
            return np.empty((0, self.shape[1]), self.dtype)
        wanted, back = np.unique(rows, return_inverse=True)
        return self._read(wanted, np.unique(wanted // self._spec.chunk_rows).tolist())[back]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        chunks = [chunk for chunk, _, _ in by_chunk(start, stop, self._spec.chunk_rows)]
        return self._read(slice(start, stop), chunks) if chunks else np.empty((0, self.shape[1]), self.dtype)

    def _read(self, rows: slice | NDArray[np.int64], chunks: list[int]) -> NDArray[Any]:
        """chunks: those that the rows lie in."""
        with self._checks.explained():
            require_chunks(self._array, chunks, ndim=2)
            try:
                with self._array.reading_errors():
                    values = np.asarray(self._zarr.oindex[(rows, slice(None))])
                self._checks.require_same_split()
                return values
            except StorageError:
                raise
            except (ValueError, RuntimeError, OSError) as error:
                raise DamagedError(f"{self._blame(chunks)} is corrupt ({error}); run `actstore verify`") from error

    def _blame(self, chunks: list[int]) -> str:
        """The first of the chunks that cannot be decoded by itself."""
        for chunk in chunks:
            try:
                self._zarr[chunk * self._spec.chunk_rows]
            except (ValueError, RuntimeError, OSError):
                return f"chunk {chunk_path(self._array, chunk)}"
        return f"a chunk of {self._array}"


class CachedRows(MappedRows):
    """As MappedRows, over the chunks that are here; the others come first, or where the cache is full, row by row."""

    def __init__(
        self, remote: FetchedRows, array: Place, cache: CacheSpec, spec: StoreSpec, rows: int, checks: ChunkChecks
    ) -> None:
        self._remote, self._array, self._spec = remote, array, spec
        needed, split = -(-rows // spec.chunk_rows), array.parent
        self._entries = checks.entries()
        crcs = [entry.crc for entry in self._entries]
        self._cache = ChunkCache(cache, str(split.parent), split.name, crcs, spec.chunk_bytes)
        self._here = np.zeros(needed, bool)  # mapped
        self._full = False
        self._lock = threading.Lock()
        self._reserve(spec, rows, checks)

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

    def scan(self, start: int, stop: int, step: int, into: Buffer | None = None) -> Iterator[NDArray[Any]]:
        for chunk, first, last in by_chunk(start, stop, self._spec.chunk_rows):
            self._bring(np.array([chunk]))
            scan = super().scan if self._here[chunk] else self._remote.scan
            yield from scan(first, last, step, into)

    def check(self, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            self._bring(np.array([chunk]))
            if self._here[chunk]:
                super().check([chunk])
            else:
                self._remote.check([chunk])

    def _compare(self, chunk: int, crc: int) -> None:
        try:
            super()._compare(chunk, crc)
        except DamagedError as error:
            path = self._cache.paths[chunk]
            path.unlink(missing_ok=True)
            raise DamagedError(f"{path} in the cache was damaged, and is removed; run the command again") from error

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
        try:
            here = self._cache.has(chunk) or self._fetch(chunk)
        except CacheError as error:
            here = self._stop_caching(error)
        if not here:
            return
        with self._lock:
            try:
                if not self._here[chunk]:
                    self._mapping.map(chunk, self._cache.paths[chunk])
                    self._here[chunk] = True
            except (OutOfMapsError, DamagedError) as error:  # another process may have needed the room just now
                self._stop_caching(error)

    def _stop_caching(self, error: Exception) -> bool:
        """From now on rows come from the bucket, as they would without a cache; said once."""
        if not self._full:
            self._full = True
            warnings.warn(f"chunks are no longer cached, rows come from the bucket: {error}", stacklevel=2)
        return False

    def _fetch(self, chunk: int) -> bool:
        if self._full or not self._cache.has_room():
            self._full = True
            return False
        entry = self._entries[chunk]
        values = read_chunk(self._array, self._spec, chunk)
        if crc32c(values) != entry.crc:
            values = values.copy()
            values[entry.rows :] = 0  # an append may have extended the chunk since its ledger was read
            if crc32c(values) != entry.crc:
                path = chunk_path(self._array, chunk)
                raise DamagedError(f"chunk {path} is not the one its ledger names; run `actstore verify`")
        try:
            return self._cache.add(chunk, values, entry.crc)
        except StorageError as error:
            raise CacheError(str(error)) from error

"""How the rows of a split are read: mapped where that is possible, else fetched; of a remote store also through a local
cache, where a chunk is fetched when first touched and mapped from then on.

Raw chunk files of one array are mapped at consecutive addresses: one (rows, dim) array, no copies. A range of addresses
is reserved, then every chunk file is mapped over its part of the range with MAP_FIXED, without its trailing crc. Chunks
must fill whole memory pages. Python's mmap does not offer addresses: the C library is called.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import CacheError, DamagedError, OutOfMapsError, StorageError
from actstore.layout.ledger import by_chunk, chunk_path
from actstore.reading.rows import Buffer, CheckedRows, ChunkChecks, FetchedRows, as_asked, read_chunk
from actstore.spec import SplitSpec, StoreSpec
from actstore.storage.atomic_file import CRC_BYTES, crc32c, extend_crc32c
from actstore.storage.object_path import CacheSpec, ChunkCache
from actstore.storage.place import FolderPath, Place

_MAP_FIXED = 0x10  # the same on Linux and macOS; Python's mmap does not name it
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)
_MADV_WILLNEED, _MADV_DONTNEED = 3, 4
_PROT_NONE = 0
_FAILED = ctypes.c_void_p(-1).value
_PROCESS_MADVISE = 440  # the same on all Linux architectures, from 5.10 on
_MOST_RANGES = 1024  # in one call
_FETCHES = 4  # chunks at a time: four times 64 MiB of memory
_NO_ROWS = ctypes.c_char()
_SPARSE = 64  # rows apart on average: closer ones are read faster with what lies between


class Mapping:
    """Addresses for `chunks` chunk files side by side; unmapped when the last array over them is gone.

    What no file was mapped over yet must not be touched.
    """

    def __init__(self, chunks: int, chunk_bytes: int) -> None:
        self._bytes, total = chunk_bytes, chunks * chunk_bytes
        self.address = 0
        if total:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            self.address = _libc().mmap(None, total, _PROT_NONE, flags, -1, 0)
            if self.address == _FAILED:
                raise OutOfMapsError(ctypes.get_errno(), f"cannot reserve {total} bytes of addresses")
            unmap = weakref.finalize(self, _libc().munmap, self.address, total)
            unmap.atexit = False  # threads may still read while the interpreter ends
        # `numpy.asarray` of this: all bytes, read-only. The array keeps this alive, and nothing here refers back to the
        # array, for the garbage collector cannot see through one. Without rows numpy still wants some valid address.
        address = self.address or ctypes.addressof(_NO_ROWS)
        self.__array_interface__ = {"data": (address, True), "shape": (total,), "typestr": "|u1", "version": 3}

    def map(self, chunk: int, path: str | Path) -> int:
        """Put a chunk file, without the crc at its end, in its place; returns that crc."""
        address, expected = self.address + chunk * self._bytes, self._bytes + CRC_BYTES
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise DamagedError(f"chunk {path} is missing; run `actstore verify`") from None
        try:
            size = os.fstat(descriptor).st_size
            if size != expected:  # reading past the end of a mapped file kills the process
                raise DamagedError(
                    f"chunk {path} is truncated: {size} bytes, expected {expected}; run `actstore verify`"
                )
            flags = mmap.MAP_SHARED | _MAP_FIXED
            if _libc().mmap(address, self._bytes, mmap.PROT_READ, flags, descriptor, 0) != address:
                raise OutOfMapsError(ctypes.get_errno(), f"cannot map {path}")
            return int.from_bytes(os.pread(descriptor, CRC_BYTES, self._bytes), "little")
        finally:
            os.close(descriptor)

    def release(self, first: int, stop: int) -> None:
        """Unmap the pages of these bytes from this process; views stay valid and fault back in."""
        first = first // mmap.PAGESIZE * mmap.PAGESIZE
        _libc().madvise(self.address + first, stop - first, _MADV_DONTNEED)

    def announce(self, rows: NDArray[np.int64], row_bytes: int) -> None:
        """Ask the kernel for the pages of rows, so that it reads those and nothing around them. A hint: what it refuses
        changes nothing.

        A fault in a mapped file reads a whole window around its page, 8 MiB on the machine of docs/scale.md. That fills
        the page cache quickly where a store fits into it; where it does not, 900 random rows read gigabytes. Announced
        rows are read as they are, many at a time: 0.1 s instead of 7.5 s on that machine, busy.
        """
        if len(rows) < 2 or int(rows.max()) - int(rows.min()) < _SPARSE * len(rows):
            return
        first = self.address + rows * row_bytes
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        ranges = np.stack([start, first + row_bytes - start], axis=1).astype(np.uint64)  # (n, 2): address and length
        process = os.pidfd_open(os.getpid())
        try:
            for part in range(0, len(ranges), _MOST_RANGES):
                some = ranges[part : part + _MOST_RANGES]
                _libc().syscall(_PROCESS_MADVISE, process, some.ctypes.data, len(some), _MADV_WILLNEED, 0)
        finally:
            os.close(process)


def announcing_helps(store_bytes: int) -> bool:
    """Whether the page cache cannot hold the rows anyway."""
    return sys.platform == "linux" and store_bytes > memory() // 2


def memory() -> int:
    """Bytes of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.syscall.restype = ctypes.c_long
    libc.syscall.argtypes = [
        ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint,
    ]  # fmt: skip
    return libc


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

    def scan(self, start: int, stop: int, step: int, into: Buffer | None = None) -> Iterator[NDArray[Any]]:
        """Rows in order, at most `step` at a time. A piece is checked just before it is handed out, so that whoever
        reads it next finds it in the cache. Each chunk is compared with the ledger after its last piece."""
        crc = 0
        for first in range(start, stop, step):
            last = min(stop, first + step)
            out = None if into is None else into[: last - first]
            for chunk, begin, end in by_chunk(first, last, self.checks.chunk_rows):
                part = None if out is None else out[begin - first : end - first]
                if self.checks.is_done(chunk):
                    as_asked(self._values[begin:end], part)
                    continue
                if begin == start:
                    crc = self._crc(chunk * self.checks.chunk_rows, begin)
                elif begin % self.checks.chunk_rows == 0:
                    crc = 0
                crc = self._crc(begin, end, crc, part)
                if end == stop:
                    crc = self._crc(end, (chunk + 1) * self.checks.chunk_rows, crc)
                if end == stop or end % self.checks.chunk_rows == 0:
                    self._compare(chunk, crc)
            yield self._values[first:last] if out is None else out

    def check(self, chunks: Iterable[int]) -> None:
        """Compare chunks with the ledger, those that were not yet; DamagedError names the first that differs."""
        size = self.checks.chunk_rows
        for chunk in chunks:
            if not self.checks.is_done(chunk):
                self._compare(chunk, self._crc(chunk * size, (chunk + 1) * size))

    def _crc(self, start: int, stop: int, crc: int = 0, into: Buffer | None = None) -> int:
        """Extended by rows, padding included, which are converted to `into` where that is given; a few at a time, since
        other Python threads wait meanwhile."""
        if into is not None:
            from actstore.compute.tensors import convert_checked

            return convert_checked(into, self._whole[start:stop], crc)
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


Rows = FetchedRows | MappedRows | CheckedRows


def open_rows(
    array: Place, spec: StoreSpec, rows: int, committed: SplitSpec | None = None, checked: bool = False
) -> Rows:
    """committed: what the caller knows of the split, whose files must be of that moment, or of a later one. Writers,
    who hold the ledger, leave it out."""
    checks = ChunkChecks(array, spec, rows, committed)
    with checks.explained():
        found = _open_rows(array, spec, rows, checks)
    return CheckedRows(found, spec.chunk_rows) if checked else found


def _open_rows(array: Place, spec: StoreSpec, rows: int, checks: ChunkChecks) -> FetchedRows | MappedRows:
    chunks = -(-rows // spec.chunk_rows)
    mappable = can_map(spec.chunk_bytes, chunks)
    if array.local_path is not None and spec.is_raw and mappable:
        with suppress(OutOfMapsError):
            return MappedRows(array.local_path, spec, rows, checks)
    if array.local_path is not None:  # of a bucket this would fetch whole chunks
        checks.entries()
        for chunk in filter(checks.was_rewritten, range(chunks)):
            checks.check_file(chunk)
    fetched = FetchedRows(array, spec, rows, checks)
    if array.cache is None:
        return fetched
    if not mappable:
        warnings.warn(f"chunks of {array} are no whole memory pages, so they are not cached", stacklevel=2)
        return fetched
    try:
        return CachedRows(fetched, array, array.cache, spec, rows, checks)
    except OutOfMapsError:
        return fetched

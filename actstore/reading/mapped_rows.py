"""Raw chunk files of one array mapped at consecutive addresses: one (rows, dim) array, no copies.

A range of addresses is reserved, then every chunk file is mapped over its part of the range with
MAP_FIXED, without its trailing crc. Chunks must fill whole memory pages.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, OutOfMapsError
from actstore.reading.checked_chunks import ChunkChecks
from actstore.reading.read_ahead import announce, is_worthwhile
from actstore.storage.atomic_file import CRC_BYTES, extend_crc32c
from actstore.storage.folder_path import FolderPath
from actstore.storage.place import Place

_MAP_FIXED = 0x10  # the same on Linux and macOS; Python's mmap does not name it
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)
_MADV_DONTNEED = 4
_PROT_NONE = 0
_CHECKED_BYTES = 1 << 20
_PIECE = 256  # rows: at most 512 MiB of mapped pages at a time
_FAILED = ctypes.c_void_p(-1).value


def can_map(chunk_bytes: int, chunks: int) -> bool:
    """Whole pages, a POSIX system, and fewer maps than the kernel's default limit of 65,530."""
    return chunk_bytes % mmap.PAGESIZE == 0 and sys.platform in ("linux", "darwin") and chunks < 60_000


class MappedRows:
    """Rows of a split as one read-only array backed by the page cache.

    Mapped pages count as resident in tools such as htop, though the kernel takes them back
    whenever it needs memory; `release` hands them back at once.
    """

    decoded_rows: int | None = None

    def __init__(self, array: FolderPath, rows: int, dim: int, dtype: str, chunk_rows: int) -> None:
        self._reserve(array, rows, dim, dtype, chunk_rows)
        for chunk in range(-(-rows // chunk_rows)):
            self._mapping.map(chunk, array / "c" / str(chunk) / "0")

    def _reserve(self, array: Place, rows: int, dim: int, dtype: str, chunk_rows: int) -> None:
        self.shape = (rows, dim)
        self.checks = ChunkChecks(array, rows, chunk_rows)
        self.dtype = np.dtype("<" + dtype)
        self._row_bytes = dim * self.dtype.itemsize
        self._mapping = Mapping(-(-rows // chunk_rows), chunk_rows * self._row_bytes)
        # with the padding of the last chunk, which its checksum covers
        padded = (-(-rows // chunk_rows) * chunk_rows, dim)
        self._whole = np.asarray(_Exposed(self._mapping, padded, self.dtype))
        self._values = self._whole[:rows]
        self._announces = is_worthwhile(rows * self._row_bytes)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) row ids -> (n, dim)."""
        if self._announces:
            announce(self._mapping.address, self._row_bytes, rows)
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
            for chunk, begin, end in self.checks.parts(first, last):
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
        size = self.checks.chunk_rows
        self.checks.compare(chunk, crc, self._whole[chunk * size : (chunk + 1) * size])

    def release(self, start: int, stop: int) -> None:
        """Unmap the pages of these rows from this process; views stay valid and fault back in."""
        if stop <= start:
            return
        first = start * self._row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        length = stop * self._row_bytes - first
        _libc().madvise(self._mapping.address + first, length, _MADV_DONTNEED)


class Mapping:
    """Addresses for `chunks` chunk files side by side; unmapped when the last array over them is gone.

    What no file was mapped over yet must not be touched.
    """

    def __init__(self, chunks: int, chunk_bytes: int) -> None:
        self._bytes = chunk_bytes
        self.address = _reserve(chunks * chunk_bytes)
        if self.address:
            unmap = weakref.finalize(self, _libc().munmap, self.address, chunks * chunk_bytes)
            unmap.atexit = False  # threads may still read while the interpreter ends

    def map(self, chunk: int, path: Path) -> None:
        _map_over(_libc(), path, self.address + chunk * self._bytes, self._bytes)


class _Exposed:
    """What numpy needs to see memory as an array. The array keeps this, and so the mapping, alive; nothing here
    refers back to the array, for the garbage collector cannot see through one."""

    def __init__(self, mapping: Mapping, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self._mapping = mapping
        # numpy wants some valid address even for an array without rows
        address = mapping.address or ctypes.addressof(_NOWHERE)
        self.__array_interface__ = {
            "data": (address, True),  # read-only
            "shape": shape,
            "typestr": dtype.str,
            "version": 3,
        }


_NOWHERE = ctypes.c_char()


def _reserve(total: int) -> int:
    if not total:
        return 0
    reserve = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    address = _libc().mmap(None, total, _PROT_NONE, reserve, -1, 0)
    if address == _FAILED:
        raise OutOfMapsError(ctypes.get_errno(), f"cannot reserve {total} bytes of addresses")
    return int(address)


def _map_over(libc: ctypes.CDLL, path: Path, address: int, length: int) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise DamagedError(f"chunk {path} is missing; run `actstore verify`") from None
    try:
        size = os.fstat(descriptor).st_size
        if size != length + CRC_BYTES:  # reading past the end of a mapped file kills the process
            raise DamagedError(
                f"chunk {path} is truncated: {size} bytes, expected {length + CRC_BYTES}; run `actstore verify`"
            )
        mapped = libc.mmap(address, length, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0)
        if mapped != address:
            raise OutOfMapsError(ctypes.get_errno(), f"cannot map {path}")
    finally:
        os.close(descriptor)


def _libc() -> ctypes.CDLL:
    global _loaded
    if _loaded is None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        _loaded = libc
    return _loaded


_loaded: ctypes.CDLL | None = None

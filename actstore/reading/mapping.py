"""Files mapped at addresses of one's choice, which Python's mmap does not offer: calls of the C library."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, OutOfMapsError
from actstore.storage.atomic_file import CRC_BYTES

_MAP_FIXED = 0x10  # the same on Linux and macOS; Python's mmap does not name it
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)
_MADV_WILLNEED, _MADV_DONTNEED = 3, 4
_PROT_NONE = 0
_FAILED = ctypes.c_void_p(-1).value
_PROCESS_MADVISE = 440  # the same on all Linux architectures, from 5.10 on
_MOST_RANGES = 1024  # in one call
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

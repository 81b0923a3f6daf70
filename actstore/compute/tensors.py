"""Fast paths for fp16 rows: torch converts them at memory speed, numpy at 0.3 GB/s, and halves.c checks them in the
same pass. Work spread over threads that each use one core, and large buffers whose memory is used again."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.storage.atomic_file import extend_crc32c

_CHECK_ROWS = 128
_BITS = {2: (0x7FFF, 0x7C00), 4: (0x7FFFFFFF, 0x7F800000)}  # bytes -> (all but the sign, infinity)
_PIECE_VALUES = 1 << 17  # 1 MiB of fp64
PIECE_ROWS = 512  # 4 MiB of fp32 at 2048 dimensions: stays in the cache between two passes


def borrow(values: NDArray[Any]) -> torch.Tensor:
    """A tensor over the memory of an array, read-only or not. The caller must not write to it."""
    if values.flags.writeable or not values.size:
        return torch.from_numpy(values)
    return torch.from_numpy(np.asarray(_Writable(values)))


class _Writable:
    """torch warns about read-only arrays, which mapped rows are; this hides the flag and keeps the owner alive."""

    def __init__(self, owner: NDArray[Any]) -> None:
        self._owner = owner
        interface = dict(owner.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on the calling thread alone.

    For work at memory speed a second thread gains nothing on a quiet machine, and on a busy one torch
    waits for it: 7 GB/s on one thread, 0.1 on two, measured on two cores with other work on them.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def convert_into(out: NDArray[Any], values: NDArray[Any]) -> None:
    """out[...] = values with a conversion of type, rounded once; out of range becomes infinite, as IEEE says."""
    native = values.dtype.newbyteorder("=")
    plain = values.dtype.isnative and native.itemsize in (2, 4, 8) and min(values.strides, default=0) >= 0
    with np.errstate(over="ignore"):
        if values.dtype == out.dtype or native.kind not in "fi" or not plain:
            out[...] = values
            return
        with one_thread():
            if native == np.float64 and out.dtype == np.float16 and values.ndim:
                _halve_doubles(out, values)
            else:
                torch.from_numpy(out).copy_(borrow(values))


def _halve_doubles(out: NDArray[Any], values: NDArray[Any]) -> None:
    """fp64 -> fp16. torch goes by way of fp32 and so rounds twice, which differs from once only where fp32 lands amid
    two fp16 values: the 12 lowest of its bits are zero then. Those, one of 4,096 by chance, are left to numpy."""
    step = max(1, _PIECE_VALUES * len(values) // max(1, values.size))
    single = np.empty((min(step, len(values)), *values.shape[1:]), np.float32)
    low, doubtful, is_other = np.empty(single.size, np.int32), np.empty(single.size, bool), np.empty(single.size, bool)
    for start in range(0, len(values), step):
        piece, target = values[start : start + step], out[start : start + step]
        torch.from_numpy(target).copy_(torch.from_numpy(single[: len(piece)]).copy_(borrow(piece)))
        bits = single.reshape(-1)[: piece.size].view(np.int32)
        few = np.equal(np.left_shift(bits, 20, out=low[: piece.size]), 0, out=doubtful[: piece.size])
        few &= np.not_equal(bits, 0, out=is_other[: piece.size])  # zeros may be many, and are exact
        found = np.unravel_index(np.flatnonzero(few), piece.shape)
        target[found] = piece[found].astype(np.float16)


def convert_checked(out: NDArray[np.float32], values: NDArray[Any], crc: int) -> int:
    """out[...] = values, both contiguous; returns the crc32c of what `crc` covers followed by the values' bytes.

    A pass over a store waits for the conversion's memory, and a checksum computed meanwhile costs nothing that can be
    measured; one after the other it was 12% of the pass. By halves.c where the processor can run it.
    """
    convert = _compiled() if values.dtype == np.float16 else None
    if convert is None:
        convert_into(out, values)
        return extend_crc32c(crc, values.view(np.uint8))
    for array in (out, values):
        if not array.flags.c_contiguous:
            raise ValueError(f"a compiled loop needs contiguous values, got strides {array.strides}; copy them")
    if out.dtype != np.float32 or out.shape != values.shape:
        raise ValueError(f"expected float32 of shape {values.shape} to convert into, got {out.dtype} of {out.shape}")
    return convert(values.__array_interface__["data"][0], values.nbytes, out.__array_interface__["data"][0], crc)


@cache
def _compiled() -> Callable[..., int] | None:
    library = load_loops(Path(__file__).with_name("_halves"), lambda loops: loops.convert_halves and loops.halves_run())
    if library is None:
        return None
    found = library.convert_halves
    found.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_uint32]
    found.restype = ctypes.c_uint32
    return cast(Callable[..., int], found)


def load_loops(path: Path, serves: Callable[[Any], Any]) -> Any | None:
    """A compiled library, by its path without an ending, if it is there and serves."""
    for suffix in EXTENSION_SUFFIXES:
        file = path.with_name(path.name + suffix)
        if file.exists():
            with suppress(OSError, AttributeError):  # not to be loaded here, or something else
                if serves(library := ctypes.CDLL(str(file))):
                    return library
    return None


def pieces_as_float(blocks: Iterable[NDArray[Any]], dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """(n, dim) of that type over pieces of blocks of rows; the tensor is reused by the next piece."""
    buffer = torch.empty((0, 0), dtype=dtype)
    for values in blocks:
        source = borrow(values)
        if len(buffer) < min(PIECE_ROWS, len(values)):
            buffer = torch.empty((min(PIECE_ROWS, len(values)), values.shape[1]), dtype=dtype)
        for start in range(0, len(values), PIECE_ROWS):
            piece = source[start : start + PIECE_ROWS]
            yield buffer[: len(piece)].copy_(piece)


def first_non_finite_row(values: NDArray[Any]) -> int | None:
    """The first row of (n, dim) fp16 or fp32 values with a NaN or an infinity: all bits of the exponent set."""
    bits = values.view(f"u{values.itemsize}")
    magnitude, infinity = _BITS[values.itemsize]
    buffer = np.empty((min(_CHECK_ROWS, len(values)), values.shape[1]), bits.dtype)
    for start in range(0, len(values), _CHECK_ROWS):
        piece = bits[start : start + _CHECK_ROWS]
        unsigned = np.bitwise_and(piece, magnitude, out=buffer[: len(piece)])
        if unsigned.size and unsigned.max() >= infinity:
            return start + int((unsigned >= infinity).any(axis=1).argmax())
    return None


@contextmanager
def worker_threads() -> Iterator[int]:
    """How many workers there may be, as many as torch has threads; meanwhile torch itself uses only the caller's.

    On two busy cores a search took three times the processor time without this.
    """
    workers = torch.get_num_threads()
    with one_thread():
        yield workers


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads that stay, since a search spreads work ten times: each with its own part of it, and none of torch's."""
    return ThreadPoolExecutor(os.cpu_count(), "actstore-worker", torch.set_num_threads, (1,))


os.register_at_fork(after_in_child=_threads.cache_clear)  # a child has none of its parent's threads


def spread(work: Callable[[int, int], None], parts: int, workers: int) -> None:
    """work(part, worker) for every part, by at most so many workers; the caller is worker 0.

    Parts are handed out in order as workers get free. The first error is raised here, after all have stopped.
    """
    numbers = iter(range(parts))  # its next() is atomic
    errors: list[BaseException] = []

    def run(worker: int) -> None:
        try:
            for part in numbers:
                if errors:
                    return
                work(part, worker)
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)

    others = [_threads().submit(run, worker) for worker in range(1, min(workers, parts))]
    run(0)
    for other in others:
        if not other.cancel():  # one that has not begun has nothing left to do
            other.result()
    if errors:
        raise errors[0]


# of glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT = 2**31 - 1  # bytes of free memory that stay with the process


def reuse_freed_memory() -> bool:
    """For programs that run a network on the CPU; call it once, at the start. True where it took effect (glibc).

    By default every buffer above 32 MiB is mapped anew and returned when freed, so each page of each layer's output
    faults in every step. Training the `simple` network at 80 x 80 pixels went from 44 to 69 images per second of CPU
    time. Up to 2 GB of freed memory then stays with the process.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return False
    settings = ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, 1 << 26))
    return all(mallopt(name, value) == 1 for name, value in settings)

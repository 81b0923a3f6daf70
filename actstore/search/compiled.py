"""The loops of kernels.c for this processor, where they were compiled when the package was installed; products of 8-bit
codes by torch, where they were not.

ctypes lets go of Python's lock during a call, so threads share the work. Every caller has another way, by torch.
Codes are whole numbers from -127 to 127. Those of rows are stored with 128 added, since x86 multiplies unsigned by
signed bytes. Sums of up to 1,040 products of codes are whole numbers below 2**24, so float32 holds them exactly too.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from ctypes import c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import load_loops, one_thread
from actstore.errors import InvalidInputError

SWITCH = "ACTSTORE_COMPILED"  # 0: torch alone; auto: the best that this processor can run; or one of these by name
PROCESSORS = ("avx512", "avxvnni", "avx2", "neon")  # the fastest first
_VERSION = 8  # of kernels.c
_NUMBER, _ARRAY = c_int64, c_void_p
_FUNCTIONS = {
    "bound_rows": [_ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 4, _NUMBER, *[_ARRAY] * 2],
    "raise_thresholds": [_ARRAY, _ARRAY, _NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 3],
    "nearest_rows": [_ARRAY, _ARRAY, _ARRAY, _NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 4, _NUMBER, _NUMBER,
                     *[_ARRAY] * 2],
    "shorten_rows": [_ARRAY, _ARRAY, *[_NUMBER] * 3, _ARRAY],
    "bound_pairs": [_ARRAY, _NUMBER, *[_ARRAY] * 3, _NUMBER, *[_ARRAY] * 4],
    "score_pairs": [_ARRAY, _NUMBER, _NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 3],
    "multiply_rows": [_ARRAY, _NUMBER, _NUMBER, _NUMBER, _ARRAY, _NUMBER, _ARRAY],
    "fold_pairs": [_ARRAY, _NUMBER, _NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 4],
    "fold_squares": [_ARRAY, _NUMBER, _NUMBER, _NUMBER, *[_ARRAY] * 2],
    "join_near": [_ARRAY, _ARRAY, _NUMBER, _NUMBER, *[_ARRAY] * 4],
    "join_rows": [_ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 3],
}  # fmt: skip


class Batch(ctypes.Structure):
    """Queries and the rows that they are compared with, by the first level: see loops/loops.h."""

    _fields_ = [("codes", _ARRAY), ("factors", _ARRAY), ("width", _NUMBER), ("chosen", _ARRAY), ("allowed", _ARRAY),
                ("queries", _ARRAY), ("excess", _ARRAY), ("coefficients", _ARRAY), ("scales", _ARRAY),
                ("count", _NUMBER), ("panels", _NUMBER), ("shorter", _ARRAY)]  # fmt: skip


class Closer(ctypes.Structure):
    """What it takes to look closer at what the first bound leaves: see loops/loops.h."""

    _fields_ = [("second", _ARRAY), ("width", _NUMBER), ("queries", _ARRAY), ("excess", _ARRAY), ("norms", _ARRAY),
                ("values", _ARRAY), ("is_half", _NUMBER), ("dim", _NUMBER), ("vectors", _ARRAY), ("scales", _ARRAY),
                ("thresholds", _ARRAY), ("margin", ctypes.c_double)]  # fmt: skip


class Kernels:
    """The loops for one processor: functions of loops/loops.h.

    adds_in_16_bits: products with four codes of a query, whose sizes must not add up to more than 128 (loops/avx2.c).
    """

    def __init__(self, library: Any, processor: str) -> None:
        self.processor, self.adds_in_16_bits = processor, processor == "avx2"

        def function(name: str) -> Callable[..., int]:
            found: Any = getattr(library, f"{name}_{processor}")
            found.argtypes, found.restype = _FUNCTIONS[name], c_int64
            return found  # type: ignore[no-any-return]

        self.bound_rows, self.bound_pairs = function("bound_rows"), function("bound_pairs")
        self.raise_thresholds, self.nearest_rows = function("raise_thresholds"), function("nearest_rows")
        self.score_pairs, self.fold_pairs = function("score_pairs"), function("fold_pairs")
        self.multiply_rows, self.shorten_rows = function("multiply_rows"), function("shorten_rows")
        self.fold_squares = function("fold_squares")
        self.join_near, self.join_rows = function("join_near"), function("join_rows")


@cache
def kernels() -> Kernels | None:
    """None where torch is asked for, or where nothing is compiled that this processor can run."""
    asked = os.environ.get(SWITCH) or "auto"
    if asked == "0":
        return None
    known = ("auto", *PROCESSORS)
    if asked not in (*known, "1"):
        raise InvalidInputError(f"{SWITCH} must be 0, {', '.join(known[:-1])} or {known[-1]}, got {asked!r}")
    able = able_processors()
    if asked in PROCESSORS and asked not in able:
        there = f"can run {', '.join(able)}" if able else "has none that it can run"
        raise InvalidInputError(f"{SWITCH} asks for the loops of {asked}, but this installation {there}")
    return Kernels(_library(), asked if asked in able else able[0]) if able else None


def able_processors() -> list[str]:
    """Those whose loops are compiled and can be run here, the fastest first."""
    library = _library()
    return [] if library is None else [name for name in PROCESSORS if library.kernels_run(name.encode())]


@cache
def _library() -> Any | None:
    return load_loops(Path(__file__).with_name("_kernels"), lambda loops: loops.kernels_version() == _VERSION)


def address(values: Tensor | NDArray[Any] | None) -> int | None:
    """Of contiguous values, which the caller keeps alive; C would read beyond the end of others."""
    if values is None:
        return None
    if isinstance(values, np.ndarray):
        if values.flags.c_contiguous:
            return int(values.__array_interface__["data"][0])  # faster than its ctypes
    elif values.is_contiguous():
        return values.data_ptr()
    raise ValueError(f"a compiled loop needs contiguous values, got a view of shape {tuple(values.shape)}; copy it")


OFFSET = 128
MOST_CODES = 1024  # of a row in one product
_TRIED = 2048  # rows of the product that decides
_PIECE = 1 << 20  # codes multiplied at a time: those of a core's cache


def multiply_codes(codes: Tensor, queries: Tensor, out: Tensor, integers: bool, far: bool = False) -> None:
    """(n, width) stored codes with (width, count) int8 codes -> out (n, count) float32: exact sums, rounded once.

    In integers each row's 128 is still in it: the sum of the query's codes times 128 is to be taken off.
    far: the codes are not in the cache. They are read once in order then, piece by piece: the product walks through
    many rows at a time, which memory serves at half its speed.
    """
    step = len(codes) if integers and not far else max(1, _PIECE // codes.shape[1])
    sums = out.view(torch.int32)  # in place: both have four bytes
    for start in range(0, len(codes), step):
        piece = codes[start : start + step]
        if not integers:
            torch.mm(piece.float().sub_(OFFSET), queries.float(), out=out[start : start + step])
            continue
        if far:
            piece.view(torch.int64).sum()
        torch._int_mm(piece, queries, out=sums[start : start + step])
    if integers:
        out.copy_(sums)


@cache
def integers_pay(width: int) -> bool:
    """Whether this processor's int8 product is right, and not slower than float32; tried once for each width.

    Processors without VNNI may add pairs of products in 16 bits, which saturate.
    """
    if not hasattr(torch, "_int_mm"):
        return False
    try:
        return _is_exact(width) and _seconds(width, True) < _seconds(width, False)
    except (RuntimeError, NotImplementedError):  # no such kernel here
        return False


def _is_exact(width: int) -> bool:
    random = torch.Generator().manual_seed(0)
    rows = torch.randint(1, 256, (64, width), generator=random, dtype=torch.uint8)
    rows[0], rows[1], rows[2, ::2] = 255, 1, 255
    for count in (1, 2, 32):
        queries = torch.randint(-127, 128, (width, count), generator=random, dtype=torch.int8)
        queries[:, 0] = 127
        queries[:, count - 1] *= 1 if count == 1 else -1
        if not torch.equal(torch._int_mm(rows, queries).long(), rows.long() @ queries.long()):
            return False
    return True


def _seconds(width: int, integers: bool) -> float:
    codes, out = torch.full((_TRIED, width), 3, dtype=torch.uint8), torch.empty(_TRIED, 32)
    queries = torch.full((width, 32), 5, dtype=torch.int8)
    return least_seconds(lambda: multiply_codes(codes, queries, out, integers))


def least_seconds(action: Callable[[], Any], times: int = 4) -> float:
    """Processor time of the best of a few tries on one thread, which other work on the machine changes least; one
    try before does not count."""
    taken = []
    with one_thread():
        for _ in range(times + 1):
            begin = time.thread_time()
            action()
            taken.append(time.thread_time() - begin)
    return min(taken[1:])

"""Products of 8-bit codes: torch's int8 matrix product, or float32 where that is slow or wrong.

Codes are whole numbers from -127 to 127. Those of rows are stored with 128 added, since x86 multiplies unsigned by
signed bytes. Sums of up to 1,040 products of codes are whole numbers below 2**24, so float32 holds them exactly too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from actstore.compute.tensors import one_thread

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

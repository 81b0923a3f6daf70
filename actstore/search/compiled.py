"""The loops of kernels.c for this processor, where they were compiled when the package was installed.

ctypes lets go of Python's lock during a call, so threads share the work. Every caller has another way, by torch.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import c_int64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError

SWITCH = "ACTSTORE_COMPILED"  # 0: torch alone; auto: the best that this processor can run; or one of these by name
PROCESSORS = ("avx512", "avxvnni", "avx2", "neon")  # the fastest first
_VERSION = 3  # of kernels.c
_NUMBER, _ARRAY = c_int64, c_void_p
_FUNCTIONS = {
    "bound_rows": [_ARRAY, _ARRAY, _NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 6, _NUMBER, _NUMBER, *[_ARRAY] * 3,
                   _NUMBER, _ARRAY, _ARRAY],
    "bound_pairs": [_ARRAY, _NUMBER, *[_ARRAY] * 3, _NUMBER, *[_ARRAY] * 4],
    "score_pairs": [_ARRAY, _NUMBER, _NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 3],
    "multiply_rows": [_ARRAY, _NUMBER, _NUMBER, _NUMBER, _ARRAY, _NUMBER, _ARRAY],
    "fold_pairs": [_ARRAY, _NUMBER, _NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 4],
}  # fmt: skip


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
        self.score_pairs, self.fold_pairs = function("score_pairs"), function("fold_pairs")
        self.multiply_rows = function("multiply_rows")


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
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            try:
                library = ctypes.CDLL(str(path))
                if library.kernels_version() == _VERSION:
                    return library
            except (OSError, AttributeError):  # not to be loaded here, or something else
                continue
    return None


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

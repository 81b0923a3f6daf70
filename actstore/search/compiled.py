"""kernels.c, where it was compiled when the package was installed and this processor can run it.

ctypes lets go of Python's lock during a call, so threads share the work. Every caller has another way, by torch.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

SWITCH = "ACTSTORE_COMPILED"  # 0: torch alone, for comparisons
_VERSION = 1  # of kernels.c
_NUMBER, _ARRAY = c_int64, c_void_p
_FUNCTIONS = {
    "bound_rows": [_ARRAY, _ARRAY, _NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 6, _NUMBER, _NUMBER, *[_ARRAY] * 3,
                   _NUMBER, _ARRAY, _ARRAY],
    "bound_pairs": [_ARRAY, _NUMBER, *[_ARRAY] * 3, _NUMBER, *[_ARRAY] * 4],
    "score_pairs": [_ARRAY, _NUMBER, _NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 3],
    "fold_pairs": [_ARRAY, _NUMBER, _NUMBER, _ARRAY, _ARRAY, _NUMBER, *[_ARRAY] * 4],
}  # fmt: skip


@cache
def kernels() -> Any | None:
    """The library with its functions declared; None where it is not there or cannot be used."""
    if os.environ.get(SWITCH) == "0":
        return None
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            try:
                return _declared(ctypes.CDLL(str(path)))
            except (OSError, AttributeError):  # not to be loaded here, or of another version
                return None
    return None


def _declared(library: Any) -> Any | None:
    if library.kernels_version() != _VERSION:
        return None
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int64
    return library


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

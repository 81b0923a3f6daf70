"""float16 rows converted to float32 and checked in one pass over memory, by halves.c where the processor can run it.

A pass over a store waits for the conversion's memory, and a checksum computed meanwhile costs nothing that can be
measured; one after the other it was 12% of the pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from actstore.compute.tensors import convert_into
from actstore.storage.atomic_file import extend_crc32c


def convert_checked(out: NDArray[np.float32], values: NDArray[Any], crc: int) -> int:
    """out[...] = values, both contiguous; returns the crc32c of what `crc` covers followed by the values' bytes."""
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
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_halves{suffix}")
        if path.exists():
            try:
                library = ctypes.CDLL(str(path))
                if not library.halves_run():
                    return None
                found = library.convert_halves
            except (OSError, AttributeError):  # not to be loaded here, or something else
                continue
            found.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_uint32]
            found.restype = ctypes.c_uint32
            return cast(Callable[..., int], found)
    return None

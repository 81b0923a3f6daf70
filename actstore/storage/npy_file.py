"""Headers of .npy files, and small ones read whole; never a pickle."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from actstore.errors import InvalidInputError

ENDS_EARLY = "ends early: it is shorter than its header says; copy it again"


def load_npy(path: Path, what: str) -> NDArray[Any]:
    """The whole of a small .npy file, which is never opened as a pickle. what: the user's word for it."""
    if not path.is_file():
        raise InvalidInputError(f"{path} is {'a folder' if path.is_dir() else 'not there'}; expected {what}")
    with path.open("rb") as stream:
        shape, _, dtype = read_header(stream, str(path))
        if path.stat().st_size - stream.tell() < math.prod(shape) * dtype.itemsize:
            raise InvalidInputError(f"{path} {ENDS_EARLY}")
        stream.seek(0)
        return npy_format.read_array(stream, allow_pickle=False)


def read_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy_format.read_magic(stream)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInputError(f"{name} is not a numpy array file, or damaged") from error
    if dtype.hasobject:
        raise InvalidInputError(f"{name} holds Python objects, which are never unpickled; save plain numbers or text")
    return shape, fortran, dtype

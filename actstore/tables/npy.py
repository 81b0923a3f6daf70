""".npy files and members of .npz archives, read as streams: nothing is mapped or loaded whole."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.storage.npy_file import ENDS_EARLY, read_header
from actstore.tables.row_source import ArrayRows, RowSource, block_rows

Opener = Callable[[], IO[bytes]]


class Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int  # of the first value


class NpyRows:
    """A C-ordered two-dimensional array behind an .npy header."""

    def __init__(self, opener: Opener, name: str, header: Header) -> None:
        self._opener, self._name = opener, name
        self.shape, self.dtype, self._offset = (header.shape[0], header.shape[1]), header.dtype, header.offset

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        row_bytes = self.shape[1] * self.dtype.itemsize
        buffer = np.empty((block_rows(self.shape[1], self.dtype), self.shape[1]), self.dtype)
        with self._opener() as stream:
            stream.seek(self._offset + start * row_bytes)
            while start < stop:
                block = buffer[: stop - start]
                _read_exactly(stream, block.reshape(-1).view(np.uint8).data, self._name)
                yield block
                start += len(block)


def npy_rows(path: Path) -> RowSource:
    """Of an array in Fortran order the file is mapped: its rows are scattered over all of it."""

    def opener() -> IO[bytes]:
        return path.open("rb", buffering=0)

    header = _matrix_header(opener, str(path))
    if not header.fortran:
        return NpyRows(opener, str(path), header)
    try:
        return ArrayRows(np.memmap(path, header.dtype, "r", header.offset, header.shape, "F"))
    except ValueError as error:
        raise InvalidInputError(_cut_short(str(path))) from error


def npz_rows(path: Path, member: str) -> RowSource:
    """An array in Fortran order inside of an archive is loaded: its rows cannot be streamed."""

    def opener() -> IO[bytes]:
        return open_member(path, member)

    name = f"{member} of {path}"
    header = _matrix_header(opener, name)
    if not header.fortran:
        return NpyRows(opener, name, header)
    with opener() as stream:
        try:
            return ArrayRows(npy_format.read_array(stream, allow_pickle=False))
        except ValueError as error:
            raise InvalidInputError(_cut_short(name)) from error


def _matrix_header(opener: Opener, name: str) -> Header:
    with opener() as stream:
        shape, fortran, dtype = read_header(stream, name)
        offset = stream.tell()
    if len(shape) != 2 or not shape[1]:
        raise InvalidInputError(f"{name} must be a two-dimensional array, got shape {shape}")
    return Header(shape, fortran and shape[0] > 1, dtype, offset)


def open_member(path: Path, member: str) -> IO[bytes]:
    # The archive object may go: the member's stream keeps the file open for itself.
    with zipfile.ZipFile(path) as archive:
        return archive.open(member + ".npy")


def member_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Name -> (shape, dtype) of the arrays in an .npz archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except zipfile.BadZipFile as error:
        raise InvalidInputError(f"{path} is not an .npz archive: {error}") from error
    headers = {}
    for name in names:
        with open_member(path, name) as stream:
            shape, _, dtype = read_header(stream, f"{name} of {path}")
        headers[name] = (shape, dtype)
    return headers


def _read_exactly(stream: IO[bytes], target: memoryview, name: str) -> None:
    done = 0
    while done < len(target):
        count = stream.readinto(target[done:])  # type: ignore[attr-defined]
        if not count:
            raise InvalidInputError(_cut_short(name))
        done += count


def _cut_short(name: str) -> str:
    return f"{name} {ENDS_EARLY}"

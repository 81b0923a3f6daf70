""".npy files and members of .npz archives, read as streams: nothing is mapped or loaded whole."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.storage.npy_file import ENDS_EARLY, read_header
from actstore.tables.row_source import RowSource, array_rows, block_rows


@dataclass(frozen=True)
class NpyRows:
    """A C-ordered two-dimensional array behind an .npy header. offset: of its first value, in bytes."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    opener: Callable[[], IO[bytes]]
    name: str
    offset: int

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        row_bytes = self.shape[1] * self.dtype.itemsize
        buffer = np.empty((block_rows(self.shape[1], self.dtype), self.shape[1]), self.dtype)
        with self.opener() as stream:
            stream.seek(self.offset + start * row_bytes)
            while start < stop:
                block = buffer[: stop - start]
                if stream.readinto(block.reshape(-1).view(np.uint8).data) != block.nbytes:  # type: ignore[attr-defined]
                    raise InvalidInputError(f"{self.name} {ENDS_EARLY}")
                yield block
                start += len(block)


def npy_rows(path: Path) -> RowSource:
    return _rows(lambda: path.open("rb"), str(path), partial(np.load, path, mmap_mode="r"))


def npz_rows(path: Path, member: str) -> RowSource:
    return _rows(partial(_open_member, path, member), f"{member} of {path}", partial(load_member, path, member))


def _rows(opener: Callable[[], IO[bytes]], name: str, load: Callable[[], NDArray[Any]]) -> RowSource:
    """load: maps or reads all of an array in Fortran order, whose rows are scattered over the whole of it."""
    with opener() as stream:
        shape, is_fortran, dtype = read_header(stream, name)
        offset = stream.tell()
    if len(shape) != 2 or not shape[1]:
        raise InvalidInputError(f"{name} must be a two-dimensional array, got shape {shape}")
    if not is_fortran or shape[0] <= 1:
        return NpyRows((shape[0], shape[1]), dtype, opener, name, offset)
    try:
        return array_rows(load())
    except ValueError as error:
        raise InvalidInputError(f"{name} {ENDS_EARLY}") from error


def _open_member(path: Path, member: str) -> IO[bytes]:
    # The archive object may go: the member's stream keeps the file open for itself.
    with zipfile.ZipFile(path) as archive:
        return archive.open(member + ".npy")


def load_member(path: Path, member: str) -> NDArray[Any]:
    with _open_member(path, member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def member_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Of the arrays in an .npz archive, by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except zipfile.BadZipFile as error:
        raise InvalidInputError(f"{path} is not an .npz archive: {error}") from error
    shapes = {}
    for name in names:
        with _open_member(path, name) as stream:
            shapes[name] = read_header(stream, f"{name} of {path}")[0]
    return shapes

"""Append to a one-dimensional raw array: labels, id offsets, id bytes, columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.layout.chunk_file import chunk_path
from actstore.layout.metadata import FLAT_ARRAYS, FlatLayout, resize
from actstore.storage.crc import CRC_BYTES
from actstore.storage.object_path import Guard
from actstore.storage.place import Place, read_file, write_chunk


class FlatAppender:
    """Extends an array after its first `length` values, chunk by chunk.

    Committed values never change their place, so a reader that knows the old length is not disturbed.
    """

    def __init__(
        self, split: Place, name: str, length: int, guard: Guard | None = None, layout: FlatLayout | None = None
    ) -> None:
        layout = layout or FLAT_ARRAYS[name]
        dtype, self._chunk = layout.dtype, layout.chunk
        self._path, self._guard = split / name, guard
        self._buffer = np.zeros(self._chunk, np.dtype("<" + dtype))
        self._filled = length % self._chunk
        self._number = length // self._chunk
        if self._filled:
            file = chunk_path(self._path, self._number, ndim=1)
            self._buffer[: self._filled] = read_file(file)[:-CRC_BYTES].view(self._buffer.dtype)[: self._filled]

    def append(self, values: NDArray[Any]) -> None:
        while len(values):
            room = self._chunk - self._filled
            part, values = values[:room], values[room:]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            if self._filled == self._chunk:
                self._flush()
                self._number, self._filled = self._number + 1, 0

    def close(self) -> int:
        """Write what is left and set the array's length, which is returned."""
        if self._filled:
            self._flush()
        length = self._number * self._chunk + self._filled
        resize(self._path, length)
        return length

    def _flush(self) -> None:
        self._buffer[self._filled :] = 0
        write_chunk(chunk_path(self._path, self._number, ndim=1), self._buffer, self._guard)

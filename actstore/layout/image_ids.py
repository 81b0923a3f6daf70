"""Image ids of a split, kept as one block of UTF-8 bytes and offsets: no object per id."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError


class Ids(Sequence[str]):
    """A sequence of strings over `offsets` (n + 1,) into `data`."""

    def __init__(self, data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._data = data.tobytes()
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        position = range(len(self))[row]  # Python's own rules for negative and out-of-range
        return self._data[self._offsets[position] : self._offsets[position + 1]].decode()

    def __iter__(self) -> Iterator[str]:
        ends = self._offsets.tolist()
        for start, stop in pairwise(ends):
            yield self._data[start:stop].decode()

    def glob(self, pattern: str) -> NDArray[np.int64]:
        """Rows whose id matches a shell pattern."""
        matches = re.compile(fnmatch.translate(pattern)).match
        return np.fromiter((row for row, name in enumerate(self) if matches(name)), np.int64)


class RowNumbers(Ids):
    """The ids of a split that was given none: the row numbers, which need no memory."""

    def __init__(self, rows: int) -> None:
        self._rows = range(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        return [str(one) for one in self._rows[row]] if isinstance(row, slice) else str(self._rows[row])

    def __iter__(self) -> Iterator[str]:
        return map(str, self._rows)


def encode_ids(ids: Iterable[str]) -> list[bytes]:
    """UTF-8 of each id; refuses what could break a listing or leave a folder when used as a path."""
    encoded = []
    for row, name in enumerate(ids):
        if not isinstance(name, str):
            raise InvalidInputError(f"id {row} must be a string, got {name!r}")
        if not name or any(ord(character) < 32 or ord(character) == 127 for character in name):
            raise InvalidInputError(f"id {row} is {name!r}: empty ids, line breaks and control characters are refused")
        if ".." in name.replace("\\", "/").split("/"):
            raise InvalidInputError(f"id {row} is {name!r}: '..' is refused, it could point outside of a folder")
        try:
            encoded.append(name.encode())
        except UnicodeEncodeError:
            raise InvalidInputError(f"id {row} is {name!r}: not valid Unicode text") from None
    return encoded


def offsets_of(encoded: Sequence[bytes]) -> NDArray[np.int64]:
    """(n,) byte strings -> (n + 1,) offsets."""
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(name) for name in encoded], out=offsets[1:])
    return offsets

"""Many short texts, image ids and columns, as one block of UTF-8 bytes and offsets: no object per text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import extend_crc32c

_BLOCK = 1 << 14  # texts that a checksum copies at a time


@dataclass(frozen=True, eq=False)
class Texts(Sequence[str]):
    """Text i is `data[offsets[i]:offsets[i + 1]]`; offsets (n + 1,) begin at 0."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[str], what: str = "text") -> Self:
        encoded = [_encode(text, row, what) for row, text in enumerate(texts)]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(text) for text in encoded], out=offsets[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    @classmethod
    def empty(cls, count: int) -> Self:
        """`count` empty texts."""
        return cls(np.empty(0, np.uint8), np.zeros(count + 1, np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Self:
        lengths = np.concatenate([np.empty(0, np.int64), *(part.lengths for part in parts)])
        data = np.concatenate([np.empty(0, np.uint8), *(part.data for part in parts)])
        return cls(data, np.concatenate([[0], np.cumsum(lengths)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: Any) -> Any:
        """The text of a row, or the list of a slice's."""
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        place = range(len(self))[row]  # Python's own rules for negative and out-of-range
        return self.data[self.offsets[place] : self.offsets[place + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        data = self.data.tobytes()
        return (data[start:stop].decode() for start, stop in pairwise(self.offsets.tolist()))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) in bytes."""
        return np.diff(self.offsets)

    def part(self, start: int, stop: int) -> Texts:
        offsets = self.offsets[start : stop + 1]
        return Texts(self.data[offsets[0] : offsets[-1]], offsets - offsets[0])

    def take(self, rows: NDArray[np.int64]) -> Texts:
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        # byte j of the outcome comes from as far behind the start of its text as it lies behind the start there
        source = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.offsets[rows] - (ends - lengths), lengths)
        return Texts(self.data[source], np.concatenate([[0], ends]))

    def equal(self, text: str) -> NDArray[np.bool_]:
        """(n,) which are this text; only those of its length are looked at."""
        wanted = np.frombuffer(text.encode(), np.uint8)
        mask: NDArray[np.bool_] = self.lengths == len(wanted)
        if len(wanted):
            rows = np.flatnonzero(mask)
            letters = self.data[self.offsets[rows][:, None] + np.arange(len(wanted))]  # (candidates, bytes)
            mask[rows] = (letters == wanted).all(1)
        return mask

    def extend_crc(self, crc: int, end: int) -> int:
        """The crc32c of what `crc` covers followed by all texts, the byte `end` after each; a block at a time.

        ValueError where the offsets are none.
        """
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.data) or (self.lengths < 0).any():
            raise ValueError("the offsets do not ascend from 0 to the number of bytes")
        for start in range(0, len(self), _BLOCK):
            part = self.part(start, min(start + _BLOCK, len(self)))
            crc = extend_crc32c(crc, np.insert(part.data, part.offsets[1:], end))
        return crc


class RowNumbers(Sequence[str]):
    """The ids of a split that was given none: the row numbers, which need no memory."""

    def __init__(self, rows: int) -> None:
        self._rows = range(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        return list(map(str, self._rows[row])) if isinstance(row, slice) else str(self._rows[row])

    def __iter__(self) -> Iterator[str]:
        return map(str, self._rows)


def _encode(text: str, row: int, what: str) -> bytes:
    if not isinstance(text, str) or "\0" in text:
        raise InvalidInputError(f"{what} of row {row} must be text without zero bytes, got {text!r}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{what} of row {row} is {text!r}: not valid Unicode text") from None


def encode_ids(ids: Iterable[str]) -> Texts:
    """Image ids; refuses what could break a listing or leave a folder when used as a path."""
    names = list(ids)
    for row, name in enumerate(names):
        if not isinstance(name, str):
            raise InvalidInputError(f"id {row} must be a string, got {name!r}")
        if not name or any(ord(character) < 32 or ord(character) == 127 for character in name):
            raise InvalidInputError(f"id {row} is {name!r}: empty ids, line breaks and control characters are refused")
        if ".." in name.replace("\\", "/").split("/"):
            raise InvalidInputError(f"id {row} is {name!r}: '..' is refused, it could point outside of a folder")
    return Texts.of(names, "id")

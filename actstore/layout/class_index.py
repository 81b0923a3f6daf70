"""Which rows belong to which class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError

_BLOCK = 1 << 18  # rows looked at together: their numbers stay in the cache


class ClassIndex:
    """Rows grouped by class. Sorted labels need only offsets; others also one row list.

    offsets: (n_class + 1,); rows of class c are `order[offsets[c]:offsets[c + 1]]`, in ascending
    order. Unlabelled rows (-1) come first and belong to no class.
    """

    def __init__(self, names: Sequence[str], labels: NDArray[Any]) -> None:
        self.names = tuple(names)
        self._labels = labels
        # places of unlabelled rows and of every class: (n_class + 2,) of 0, then ends
        ends = np.zeros(len(self.names) + 2, np.int64)
        for start in range(0, len(labels), _BLOCK):
            ends[1:] += np.bincount(labels[start : start + _BLOCK] + 1, minlength=len(self.names) + 1)
        self.offsets = ends.cumsum()[1:]

    @cached_property
    def order(self) -> NDArray[Any] | None:
        """(rows,) grouped by class, None for sorted labels; made when first needed, in 0.3 s for ten million rows."""
        labels = self._labels
        parts = (
            labels[start : start + _BLOCK + 1] for start in range(0, len(labels), _BLOCK)
        )  # the next one's first, too
        if all((part[1:] >= part[:-1]).all() for part in parts):
            return None
        # half the memory of int64 wherever row numbers allow it: 40 MB for ten million rows
        order = np.empty(len(labels), np.uint32 if len(labels) < 2**32 else np.int64)
        narrow = np.uint16 if len(self.names) < 2**16 else np.int64  # numpy sorts 16 bits by radix
        free = np.concatenate([[0], self.offsets[:-1]])  # the next place of every class
        for start in range(0, len(labels), _BLOCK):
            groups = (labels[start : start + _BLOCK] + 1).astype(narrow)
            rows = np.argsort(groups, kind="stable")
            counts = np.bincount(groups, minlength=len(free))
            # the k-th row of a class in this block goes to its k-th free place
            shift = np.repeat(free - (counts.cumsum() - counts), counts)
            order[shift + np.arange(len(rows))] = rows + start
            free += counts
        return order

    def __len__(self) -> int:
        return len(self.names)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(n_class,) rows of each class."""
        return np.diff(self.offsets)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    def position(self, name: str | int) -> int:
        """The label of a class, given its name or the label itself."""
        if isinstance(name, int | np.integer):
            if 0 <= int(name) < len(self.names):
                return int(name)
            raise InvalidInputError(f"class {name} is out of range: there are {len(self.names)} classes")
        if name in self._positions:
            return self._positions[name]
        from difflib import get_close_matches

        close = get_close_matches(name, self.names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the store has {len(self)}, see `actstore info --classes`"
        raise InvalidInputError(f"no class is named {name!r}; {hint}")

    def positions(self, names: Iterable[str | int]) -> NDArray[np.int64]:
        """(n,) labels of these classes."""
        return np.array([self.position(name) for name in names], np.int64)

    def span(self, label: int) -> range | None:
        """The rows of a class as a range, where they are contiguous for certain."""
        if self.order is not None:
            return None
        return range(int(self.offsets[label]), int(self.offsets[label + 1]))

    def rows(self, label: int) -> NDArray[np.int64]:
        """Row ids of a class, ascending."""
        start, stop = int(self.offsets[label]), int(self.offsets[label + 1])
        if self.order is None:
            return np.arange(start, stop)
        return self.order[start:stop].astype(np.int64)

    def row_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions in the grouped order -> row ids."""
        return positions if self.order is None else self.order[positions].astype(np.int64)

"""Codes of four bits, made from the first level's codes of eight: a search for a few queries waits for memory, and they
are half as long. They leave some percent of the rows, whose codes of eight bits are read then.

A row's codes c, of scale s, become numbers n from 0 to 15, which stand for levels L(n) (loops/processors.h): c is
about u L(n), where u is the row's own unit. Its width / 2 bytes hold the first half of the numbers in their lower bits,
and the others above. Four factors of 16 bits follow: s u in 2**-20 and, as in `factors` (levels.py), x_0 in 2**-15, and
what the codes lose and the rest in 2**-14, both rounded up. A bound is the same sum of products as that of the first
level, but that the norm of what the codes stand for is taken to be that of a whole row and what they lose.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from actstore.compute.tensors import spread
from actstore.search.compiled import MOST_CODES, address, kernels
from actstore.search.levels import Levels

_FACTORS = 4 * 2  # bytes
_LEAST_BYTES = 1 << 26  # of the first level: below, caches hold much of it
_LEAST_WIDTH = 128  # codes, below which the factors are much of a row
_MOST_LEFT = 0.25  # of the pairs: with more, looking at them again costs more than was spared
_JUDGED = 8  # queries, after which this is decided
_ROWS = 16_384  # at a time

Shorter = NDArray[np.uint8]  # (rows, width / 2 + 8)


class ShortCodes:
    """Of one index, in memory: made by the second search for a few queries, since a single one is over before they are.
    They are given up where they leave too many rows."""

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self._codes: Shorter | None = None
        self._searches = self._queries = self._left = 0
        self._pays = levels.first.nbytes >= _LEAST_BYTES and _LEAST_WIDTH <= levels.first.shape[1] <= MOST_CODES
        self._lock = threading.Lock()

    @property
    def codes(self) -> Shorter | None:
        """Where there are some by now."""
        return self._codes

    def asked(self, workers: int) -> Shorter | None:
        """For a search of all rows, for a few queries."""
        if not self._pays or kernels() is None:
            return None
        with self._lock:
            self._searches += 1
            if self._codes is None and self._searches > 1:
                self._codes = shorten(self._levels, workers)
            return self._codes

    def judge(self, queries: int, left: int) -> None:
        """left: pairs of a search of all rows that reached a threshold by these codes."""
        with self._lock:
            self._queries += queries
            self._left += left
            if self._queries >= _JUDGED and self._left > _MOST_LEFT * self._queries * len(self._levels.first):
                self._codes, self._pays = None, False


def shorten(levels: Levels, workers: int) -> Shorter:
    """(rows, width / 2 + 8)"""
    count, width = levels.first.shape
    made, loops = np.empty((count, width // 2 + _FACTORS), np.uint8), kernels()
    assert loops is not None

    def part(number: int, worker: int) -> None:
        start, stop = number * _ROWS, min(count, (number + 1) * _ROWS)
        loops.shorten_rows(address(levels.first), address(levels.factors), width, start, stop, address(made))

    spread(part, -(-count // _ROWS), workers)
    return made

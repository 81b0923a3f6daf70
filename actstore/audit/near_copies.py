"""Near copies: neighbours that are nearer than the rows around them allow.

A similarity says little by itself: 0.95 is a copy for one network and a mere likeness for another. Rows that lie
around without copies look locally like points strewn evenly in m dimensions, of which the nearest is at the
fraction r of the distance of the k-th with probability 1 - (1 - r^m)^(k-1) or less. m is measured: the value at which
half of all rows are below that law's median. The nearest neighbours whose r is too small for it are near copies;
how small is decided by Benjamini and Hochberg's rule, so that of those named about 1% are named by chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FALSE_SHARE = 0.01  # of the rows named, expected by chance
LEAST_ROWS = 50  # with fewer the dimension is no measurement
LEAST_NEIGHBOURS = 5
_MOST_DIMENSIONS = 1000.0


@dataclass(frozen=True)
class NearCopies:
    """pairs (n, 2): a row and its neighbour's column among its neighbours. ratio: the largest that was named.

    dimension: m above; 0 where there are too few rows to measure it, and nothing is named.
    """

    pairs: NDArray[np.int64]
    ratio: float
    dimension: float


def find_near_copies(scores: NDArray[np.float32], false_share: float = FALSE_SHARE) -> NearCopies:
    """scores (n, k): cosines with the k nearest, descending, copies left out; -1 and last where there are fewer."""
    ratios, counts = distance_ratios(scores)
    k = scores.shape[1]
    full = counts == k
    nothing = NearCopies(np.empty((0, 2), np.int64), 0.0, 0.0)
    if k < LEAST_NEIGHBOURS or np.count_nonzero(full) < LEAST_ROWS:
        return nothing
    dimension = measure_dimension(ratios[full, 0], k)
    tested = np.flatnonzero(counts >= LEAST_NEIGHBOURS)
    chances = chance(ratios[tested, 0], dimension, counts[tested])
    named = tested[by_false_share(chances, false_share)]
    if not len(named):
        return NearCopies(nothing.pairs, 0.0, dimension)
    ratio = float(ratios[named, 0].max())
    at, column = np.nonzero(ratios[named] <= ratio)  # also further copies of the same row
    return NearCopies(np.stack([named[at], column], axis=1), ratio, dimension)


def distance_ratios(scores: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(n, k) cosines -> (n, k) distances as shares of that of the last neighbour, inf where there is none; (n,) how
    many neighbours there are."""
    present = scores > -1
    counts = np.count_nonzero(present, axis=1)
    distances = np.sqrt(np.maximum(2 - 2 * scores.astype(np.float64), 0))
    last = np.take_along_axis(distances, np.maximum(counts - 1, 0)[:, None], 1) if scores.shape[1] else distances
    ratios = np.divide(distances, last, out=np.ones_like(distances), where=last > 0)
    return np.where(present, ratios, np.inf), counts


def measure_dimension(ratios: NDArray[np.float64], k: int) -> float:
    """m at which the median of ratios (n,) of first to k-th distances is that of points strewn in m dimensions."""
    middle = float(np.log(max(np.median(ratios), 1e-6)))
    expected = float(np.log(1 - 0.5 ** (1 / (k - 1))))
    return _MOST_DIMENSIONS if middle >= 0 else min(expected / middle, _MOST_DIMENSIONS)


def chance(ratios: NDArray[np.float64], dimension: float, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) how often the nearest of `counts` neighbours would be at such a share of the last one's distance."""
    return -np.expm1((counts - 1) * np.log1p(-np.minimum(ratios**dimension, 1 - 1e-15)))


def by_false_share(chances: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """Positions of those named by Benjamini and Hochberg's rule, ascending."""
    order = np.argsort(chances, kind="stable")
    passed = np.flatnonzero(chances[order] <= share * np.arange(1, len(chances) + 1) / max(len(chances), 1))
    return np.sort(order[: passed[-1] + 1]) if len(passed) else np.empty(0, np.int64)

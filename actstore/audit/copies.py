"""One pass over the rows of a split: what needs no neighbours."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actstore.split import Split

_BLOCK_ROWS = 4096
Progress = Callable[[int], None]  # rows done since the last call


@dataclass(frozen=True)
class Survey:
    """fingerprints (rows, 2) uint64: equal where rows are. is_zero (rows,). lowest, highest (dim,) of every feature.
    class_sums (classes, dim) and class_counts (classes,): of the labelled rows, each scaled to length one."""

    fingerprints: NDArray[np.uint64]
    is_zero: NDArray[np.bool_]
    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]
    class_sums: NDArray[np.float64]
    class_counts: NDArray[np.int64]


def survey_split(split: Split, progress: Progress | None = None) -> Survey:
    """Chunks are compared with their checksums on the way."""
    count, classes = len(split), len(split.classes)
    prints = np.empty((count, 2), np.uint64)
    is_zero = np.empty(count, bool)
    lowest, highest = np.full(split.dim, np.inf), np.full(split.dim, -np.inf)
    sums, counts = np.zeros((classes, split.dim)), np.zeros(classes, np.int64)
    done = 0
    for block in split.rows.scan(0, count, _BLOCK_ROWS):
        part = slice(done, done + len(block))
        values = np.asarray(block, np.float64)
        prints[part] = fingerprints(block)
        is_zero[part] = ~values.any(axis=1)
        np.minimum(lowest, values.min(axis=0), out=lowest)
        np.maximum(highest, values.max(axis=0), out=highest)
        _add_by_class(sums, counts, unit_rows(values), split.labels[part])
        done += len(block)
        if progress is not None:
            progress(len(block))
    return Survey(prints, is_zero, lowest, highest, sums, counts)


def fingerprints(rows: NDArray[np.floating]) -> NDArray[np.uint64]:
    """(n, dim) -> (n, 2): 128 bits of a hash of each row; -0 counts as 0."""
    data = np.ascontiguousarray(rows + rows.dtype.type(0))
    digests = b"".join(hashlib.blake2b(row, digest_size=16).digest() for row in data)
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


def unit_rows(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, dim) scaled to length one; rows of zeros stay zeros."""
    length = np.linalg.norm(values, axis=1, keepdims=True)
    units: NDArray[np.float64] = np.divide(values, length, out=np.zeros_like(values), where=length > 0)
    return units


def _add_by_class(
    sums: NDArray[np.float64], counts: NDArray[np.int64], units: NDArray[np.float64], labels: NDArray[np.int32]
) -> None:
    """Rows of zeros have no direction and are left out, as are those without a label."""
    used = np.flatnonzero((labels >= 0) & units.any(axis=1))
    order = used[np.argsort(labels[used], kind="stable")]
    present, starts, rows = np.unique(labels[order], return_index=True, return_counts=True)
    if len(order):
        sums[present] += np.add.reduceat(units[order], starts, axis=0)
        counts[present] += rows


def copy_groups(parts: Sequence[Survey]) -> NDArray[np.int64]:
    """(all rows,) of the splits one after the other: the first row that is the same, its own place where none is.

    Rows of zeros are all the same, but tell nothing: each is alone.
    """
    prints = np.concatenate([np.empty((0, 2), np.uint64), *(part.fingerprints for part in parts)])
    is_zero = np.concatenate([np.empty(0, bool), *(part.is_zero for part in parts)])
    first = np.arange(len(prints))
    used = np.flatnonzero(~is_zero)
    keys = np.ascontiguousarray(prints[used]).view([("a", "<u8"), ("b", "<u8")])[:, 0]
    _, start, inverse = np.unique(keys, return_index=True, return_inverse=True)  # the first of equal ones
    first[used] = used[start[inverse]]
    return first


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

"""What an audit finds in rows, neighbours and labels.

A survey, one pass over the rows of a split, finds what needs no neighbours: copies byte for byte, rows of zeros,
features that never change, class means.

Near copies are neighbours nearer than the rows around them allow. A similarity says little by itself: 0.95 is a copy
for one network and a mere likeness for another. Rows that lie around without copies look locally like points strewn
evenly in m dimensions, of which the nearest is at the fraction r of the distance of the k-th with probability
1 - (1 - r^m)^(k-1) or less. m is measured: the value at which half of all rows are below that law's median. The nearest
neighbours whose r is too small for it are near copies; how small is decided by Benjamini and Hochberg's rule, so that
of those named about 1% are named by chance.

The score of a label is the sum of two numbers, each in units of its standard deviation over all rows: how much nearer
the mean of its own class (without the row itself) lies than the nearest other mean, and, at half weight, the share of
its neighbours that have its label. On mini-ImageNet the class means do most of it: see docs/audit.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actstore.analysis.similarity import unit
from actstore.progress import Progress
from actstore.split import Split

_BLOCK_ROWS = 4096


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
        _add_by_class(sums, counts, unit(values), split.labels[part])
        done += len(block)
        if progress is not None:
            progress(len(block))
    return Survey(prints, is_zero, lowest, highest, sums, counts)


def fingerprints(rows: NDArray[np.floating]) -> NDArray[np.uint64]:
    """(n, dim) -> (n, 2): 128 bits of a hash of each row; -0 counts as 0."""
    data = np.ascontiguousarray(rows + rows.dtype.type(0))
    digests = b"".join(hashlib.blake2b(row, digest_size=16).digest() for row in data)
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


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


VOTES_WEIGHT = 0.5
SUSPECT_BELOW = -2.5  # robust standard deviations of the score
UNJUDGED = np.float32(1e9)  # score of a row without a label, without direction, or alone in its class


@dataclass(frozen=True)
class LabelScores:
    """score (n,): low is suspect. suggested (n,): the class with the nearest other mean, -1 where there is none.
    is_suspect (n,)."""

    score: NDArray[np.float32]
    suggested: NDArray[np.int64]
    is_suspect: NDArray[np.bool_]


def mean_margins(
    units: NDArray[np.float64],
    labels: NDArray[np.integer],
    sums: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Squared distance to the nearest other class mean less that to the own one, and which other class it is.

    units (n, dim) of length one, labels (n,) from 0 on; sums (classes, dim) and counts of all rows, these among them.
    The own mean is that of the other rows of the class, of which there must be one.
    """
    rows = np.arange(len(units))
    means = sums / np.maximum(counts, 1)[:, None]
    distances = np.einsum("cd,cd->c", means, means) - 2 * units @ means.T
    distances += np.einsum("nd,nd->n", units, units)[:, None]
    own_count = counts[labels]
    # |u - mean without u| = n / (n - 1) |u - mean with u|
    own = distances[rows, labels] * (own_count / np.maximum(own_count - 1, 1)) ** 2
    distances[:, counts == 0] = np.inf
    distances[rows, labels] = np.inf
    other = distances.argmin(axis=1)
    return distances[rows, other] - own, other


def votes(labels: NDArray[np.integer], near: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """labels (n,), near (n, k) those of the neighbours, -1 for none -> shares (n,) of the labelled neighbours: with
    the same label, and with the most frequent other one."""
    present = near >= 0
    total = np.maximum(np.count_nonzero(present, axis=1), 1)
    same = present & (near == labels[:, None])
    ranked = np.sort(near, axis=1)  # equal labels lie together: no table of all pairs, which a large k has no room for
    begins = np.flatnonzero(np.diff(ranked, axis=1, prepend=-2) != 0)
    rows, run, lengths = begins // max(near.shape[1], 1), ranked.ravel()[begins], np.diff(begins, append=near.size)
    counted = (run >= 0) & (run != labels[rows])
    other = np.zeros(len(labels), np.int64)
    np.maximum.at(other, rows[counted], lengths[counted])
    return np.count_nonzero(same, axis=1) / total, other / total


def judge(
    margins: NDArray[np.float64],
    own: NDArray[np.float64],
    other: NDArray[np.float64],
    suggested: NDArray[np.int64],
    is_judged: NDArray[np.bool_],
) -> LabelScores:
    """All (n,), see mean_margins and votes. Suspect: an outlier of the score with both against the label."""
    score = np.full(len(margins), UNJUDGED, np.float32)
    suspect = np.zeros(len(margins), bool)
    if is_judged.any():
        combined = _scaled(margins[is_judged]) + VOTES_WEIGHT * _scaled(own[is_judged])
        score[is_judged] = combined
        low = robust_deviations(combined) < SUSPECT_BELOW
        suspect[is_judged] = low & (margins[is_judged] < 0) & (other[is_judged] > own[is_judged])
    return LabelScores(score, np.where(is_judged, suggested, -1), suspect)


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = values.std()
    return values / spread if spread > 0 else values


def robust_deviations(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,) distance from the median in standard deviations, of a normal distribution with the same quartiles."""
    middle = np.median(values)
    spread = np.median(np.abs(values - middle)) * 1.4826
    return (values - middle) / spread if spread > 0 else np.zeros_like(values)

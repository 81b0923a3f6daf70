"""Suspect labels: those that neither the nearest rows nor the class means agree with.

The score of a row is the sum of two numbers, each in units of its standard deviation over all rows: how much
nearer the mean of its own class (without the row itself) lies than the nearest other mean, and, at half weight, the
share of its neighbours that have its label. On mini-ImageNet the class means do most of it: see docs/audit.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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

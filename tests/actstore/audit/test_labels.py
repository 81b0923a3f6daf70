"""Suspect labels against plain loops."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.audit.detection import UNJUDGED, judge, mean_margins, robust_deviations, votes


@pytest.mark.numeric
def test_margins_are_those_of_class_means_without_the_row_itself() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((40, 6))
    units, labels = rows / np.linalg.norm(rows, axis=1, keepdims=True), random.integers(0, 4, 40)
    labels[:8] = [0, 0, 1, 1, 2, 2, 3, 3]
    sums = np.stack([units[labels == label].sum(axis=0) for label in range(5)])  # the fifth has no row
    counts = np.bincount(labels, minlength=5)
    margins, other = mean_margins(units, labels, sums, counts)
    for row in range(40):
        rest = np.arange(40) != row
        apart = {c: float(((units[row] - units[rest & (labels == c)].mean(axis=0)) ** 2).sum()) for c in range(4)}
        own = apart.pop(int(labels[row]))
        assert margins[row] == pytest.approx(min(apart.values()) - own, abs=1e-12)
        assert other[row] == min(apart, key=lambda label: apart[label])


@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_votes_are_shares_of_the_labelled_neighbours(count: int, k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    labels, near = random.integers(0, 3, count), random.integers(-1, 3, (count, k))
    own, other = votes(labels, near)
    for row in range(count):
        labelled = [label for label in near[row].tolist() if label >= 0]
        others = [label for label in labelled if label != labels[row]]
        total = max(1, len(labelled))
        assert own[row] == labelled.count(int(labels[row])) / total
        assert other[row] == max((others.count(label) for label in others), default=0) / total


def test_votes_of_many_neighbours_need_no_table_of_all_pairs() -> None:
    labels, near = np.zeros(64, np.int64), np.arange(64 * 1000).reshape(64, 1000) % 7 - 1
    tracemalloc.start()
    try:
        votes(labels, near)
        assert tracemalloc.get_traced_memory()[1] < 16 * near.nbytes  # all pairs are 125 times as much
    finally:
        tracemalloc.stop()


def test_a_suspect_row_has_all_against_it() -> None:
    margins = np.concatenate([np.linspace(0.4, 0.6, 99), [-1.0]])
    own, other = np.full(100, 0.9), np.full(100, 0.1)
    suggested, judged = np.zeros(100, np.int64), np.ones(100, bool)
    assert not judge(margins, own, other, suggested, judged).is_suspect.any()  # its neighbours agree with it
    own[-1], other[-1] = 0.0, 0.8
    found = judge(margins, own, other, suggested, judged)
    assert np.flatnonzero(found.is_suspect).tolist() == [99]
    assert found.score.argmin() == 99
    judged[-1] = False
    found = judge(margins, own, other, suggested, judged)
    assert not found.is_suspect.any()
    assert found.score[-1] == UNJUDGED
    assert found.suggested[-1] == -1


def test_deviations_do_not_mind_the_outlier() -> None:
    values = np.append(np.random.default_rng(0).standard_normal(2000), 1e6)
    found = robust_deviations(values)
    assert found[:-1].std() == pytest.approx(1, abs=0.1)
    assert not robust_deviations(np.ones(5)).any()

"""Outcomes against a brute force that ranks every query by itself."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from predictor.protocol.outcome import METRICS, BaseSide, Outcome, Queries, harmonic_mean

pytestmark = pytest.mark.numeric

Array = NDArray[np.float64]
HIGH = 6  # scores are whole numbers from 0 to this: many ties, and biases of halves are exact


@st.composite
def problems(draw: st.DrawFn) -> tuple[Array, NDArray[np.int64], int, int]:
    """Scores (n, n_base + n_novel), the true category of each query, the number of base categories and queries."""
    n_base, n_novel = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    of_base, of_novel = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    shape = (of_base + of_novel, n_base + n_novel)
    scores = draw(arrays.arrays(np.float64, shape, elements=st.integers(0, HIGH).map(float)))
    base = draw(st.lists(st.integers(0, n_base - 1), min_size=of_base, max_size=of_base))
    novel = draw(st.lists(st.integers(n_base, n_base + n_novel - 1), min_size=of_novel, max_size=of_novel))
    return scores, np.array([*base, *novel]), n_base, of_base


def measured(scores: Array, targets: NDArray[np.int64], n_base: int, of_base: int) -> Outcome:
    queries = Queries(
        torch.empty(len(scores), 1), torch.from_numpy(targets[:of_base]), torch.from_numpy(targets[of_base:] - n_base)
    )
    tensor = torch.from_numpy(scores).float()
    side = BaseSide.of(tensor[:, :n_base], queries, torch.ones(len(tensor)))
    return Outcome.of(side, tensor[:, n_base:], queries)


def ranks(scores: Array, targets: NDArray[np.int64]) -> list[int]:
    """Place of the true category when the highest comes first, of equals the lower category."""
    return [
        sorted(range(scores.shape[1]), key=lambda category: (-row[category], category)).index(target)
        for row, target in zip(scores, targets.tolist(), strict=True)
    ]


def top1(scores: Array, targets: NDArray[np.int64]) -> float:
    return 100 * float(np.mean([rank == 0 for rank in ranks(scores, targets)]))


def with_bias(scores: Array, n_base: int, bias: float) -> Array:
    return np.concatenate([scores[:, :n_base], scores[:, n_base:] + bias], axis=1)


@settings(max_examples=50)
@given(problems())
def test_ranks_with_ties(problem: tuple[Array, NDArray[np.int64], int, int]) -> None:
    scores, targets, _, of_base = problem
    outcome, expected = measured(*problem), np.array(ranks(scores, targets))
    assert outcome.base_rank.tolist() == expected[:of_base].tolist()
    assert np.minimum(outcome.novel_rank, 5).tolist() == np.minimum(expected[of_base:], 5).tolist()


@settings(max_examples=50)
@given(problems())
def test_every_metric(problem: tuple[Array, NDArray[np.int64], int, int]) -> None:
    scores, targets, n_base, of_base = problem
    rank = np.array(ranks(scores, targets))
    base, novel = 100 * (rank[:of_base] == 0).mean(), 100 * (rank[of_base:] == 0).mean()
    base_alone = top1(scores[:of_base, :n_base], targets[:of_base])
    novel_alone = top1(scores[of_base:, n_base:], targets[of_base:] - n_base)
    expected = {
        "top1_large": base,
        "top5_large": 100 * (rank[:of_base] < 5).mean(),
        "top1_few": novel,
        "top5_few": 100 * (rank[of_base:] < 5).mean(),
        "harmonic_mean": 0 if base * novel == 0 else 2 / (1 / base + 1 / novel),
        "joint": 100 * (rank == 0).mean(),
        "delta": ((base - base_alone) + (novel - novel_alone)) / 2,
        "best_harmonic_mean": max(biased_harmonic_mean(*problem, place - HIGH - 0.5) for place in range(2 * HIGH + 2)),
        "ausuc": staircase_area(*problem),
        "auroc": 100 * pairwise_auroc(*problem),
    }
    found = measured(*problem).metrics()
    assert found.keys() == expected.keys() == METRICS.keys()
    assert found == pytest.approx(expected, nan_ok=True)


def biased_harmonic_mean(scores: Array, targets: NDArray[np.int64], n_base: int, of_base: int, bias: float) -> float:
    biased = with_bias(scores, n_base, bias)
    return harmonic_mean(top1(biased[:of_base], targets[:of_base]), top1(biased[of_base:], targets[of_base:]))


def pairwise_auroc(scores: Array, targets: NDArray[np.int64], n_base: int, of_base: int) -> float:
    """Every pair of an image of a known and one of an unknown category, with either half of the novel ones known."""
    n_novel, found = scores.shape[1] - n_base, []
    for first in (0, 1) if n_novel > 1 else ():
        known = [*range(n_base), *range(n_base + first, n_base + n_novel, 2)]
        familiar = scores[:, known].max(1)
        inside = [value for value, target in zip(familiar, targets, strict=True) if target in known]
        outside = [value for value, target in zip(familiar, targets, strict=True) if target not in known]
        pairs = [(one > other) + (one == other) / 2 for one in inside for other in outside]
        found.append(np.mean(pairs) if pairs else np.nan)
    return float(np.mean(found)) if found else float("nan")


def test_scores_are_compared_by_the_lengths_of_their_queries() -> None:
    """A long query has high scores with every category, known or not."""
    queries = Queries(torch.empty(3, 1), torch.tensor([0]), torch.tensor([0, 1]))
    base, novel = torch.tensor([[0.9], [0.0], [0.0]]), torch.tensor([[0.0, 0.0], [0.8, 0.1], [5.0, 9.0]])
    plain, scaled = (
        Outcome.of(BaseSide.of(base, queries, lengths), novel, queries).auroc
        for lengths in (torch.ones(3), torch.tensor([1.0, 1.0, 10.0]))
    )
    assert plain == pytest.approx((0 + 1) / 2)  # with either half known
    assert scaled == pytest.approx((1 + 1) / 2)
    assert np.isnan(Outcome.of(BaseSide.of(base, queries), novel, queries).auroc)


def staircase_area(scores: Array, targets: NDArray[np.int64], n_base: int, of_base: int) -> float:
    """Of base over novel accuracy, with the bias at every threshold from nothing novel to nothing base."""
    points = []
    for bias in np.arange(-HIGH - 1.5, HIGH + 2):  # between the whole numbers, where answers change
        shifted = with_bias(scores, n_base, bias)
        points.append((top1(shifted[of_base:], targets[of_base:]), top1(shifted[:of_base], targets[:of_base])))
    steps = [(novel - before) * base for (before, _), (novel, base) in pairwise(points)]
    assert points[0][0] == 0
    assert points[-1][1] == 0
    return sum(steps) / 100


@settings(max_examples=50)
@given(problems(), st.lists(st.integers(-2 * HIGH - 3, 2 * HIGH + 3), min_size=1, max_size=8))
def test_accuracies_at_any_bias(problem: tuple[Array, NDArray[np.int64], int, int], halves: list[int]) -> None:
    scores, targets, n_base, of_base = problem
    biases = np.array(halves) / 2
    base, novel = measured(*problem).accuracies(biases)
    for place, bias in enumerate(biases):
        shifted = with_bias(scores, n_base, bias)
        assert base[place] == pytest.approx(top1(shifted[:of_base], targets[:of_base]))
        assert novel[place] == pytest.approx(top1(shifted[of_base:], targets[of_base:]))


@settings(max_examples=50)
@given(problems())
def test_no_bias_is_bias_zero(problem: tuple[Array, NDArray[np.int64], int, int]) -> None:
    outcome = measured(*problem)
    metrics, (base, novel) = outcome.metrics(), outcome.accuracies(np.zeros(1))
    assert (base[0], novel[0]) == pytest.approx((metrics["top1_large"], metrics["top1_few"]))


@pytest.mark.parametrize(("base", "novel", "mean"), [(50, 50, 50), (0, 80, 0), (0, 0, 0), (60, 20, 30)])
def test_harmonic_mean(base: float, novel: float, mean: float) -> None:
    assert harmonic_mean(base, novel) == pytest.approx(mean)


@pytest.mark.parametrize("column", [0, 2])
def test_scores_that_are_no_numbers_are_not_right_answers(column: int) -> None:
    scores = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    scores[1, column] = np.nan
    with pytest.raises(InvalidInputError, match="a score is NaN"):
        measured(scores, np.array([0, 2]), 2, 1)


def test_a_curve_runs_from_the_base_alone_to_the_novel_alone() -> None:
    random = np.random.default_rng(3)
    base_limit = np.where(random.random(50) < 0.7, random.normal(1, 1, 50), -np.inf)
    novel_limit = np.where(random.random(30) < 0.6, random.normal(0, 1, 30), np.inf)
    outcome = Outcome(np.zeros(50, np.int64), np.zeros(30, np.int64), base_limit, novel_limit)
    curve = outcome.curve()
    alone = 100 * np.isfinite(base_limit).mean(), 100 * np.isfinite(novel_limit).mean()
    np.testing.assert_allclose(curve[:2], [[alone[0], 0], [0, alone[1]]])
    order = np.lexsort((curve[:, 1], -curve[:, 0]))
    assert (np.diff(curve[order, 1]) >= 0).all()  # what the base loses, the novel categories gain
    assert (curve.max(0) <= np.array(alone) + 1e-9).all()

"""Near copies against a plain reference, and against what chance does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from actstore.audit.detection import by_false_share, chance, distance_ratios, find_near_copies, measure_dimension

K = 10


def nearest_cosines(rows: NDArray[np.float64], k: int = K) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    scores = units @ units.T
    np.fill_diagonal(scores, -np.inf)
    order = np.argsort(-scores, axis=1)[:, :k]
    return np.take_along_axis(scores, order, 1).astype(np.float32), order


def strewn(count: int, dim: int, inner: int, seed: int) -> NDArray[np.float64]:
    """Rows that vary in `inner` directions of `dim`."""
    random = np.random.default_rng(seed)
    return 3.0 + random.standard_normal((count, inner)) @ random.standard_normal((inner, dim)) / np.sqrt(inner)


@pytest.mark.parametrize("inner", [4, 12])
def test_the_dimension_is_that_of_the_rows_not_of_the_space(inner: int) -> None:
    scores, _ = nearest_cosines(strewn(3000, 64, inner, 0))
    assert measure_dimension(distance_ratios(scores)[0][:, 0], K) == pytest.approx(inner, rel=0.35)


@pytest.mark.parametrize("seed", range(5))
def test_planted_near_copies_are_found_and_little_else(seed: int) -> None:
    rows = strewn(800, 64, 10, seed)
    random = np.random.default_rng([9, seed])
    planted = rows[:40] + 0.05 * random.standard_normal((40, 64))
    scores, order = nearest_cosines(np.concatenate([rows, planted]))
    found = find_near_copies(scores)
    pairs = {frozenset((row, int(order[row, column]))) for row, column in found.pairs.tolist()}
    truth = {frozenset((row, 800 + row)) for row in range(40)}
    assert truth <= pairs
    assert len(pairs - truth) <= 3  # 1% of the 80 rows named, by chance


def test_rows_without_copies_name_next_to_nothing() -> None:
    named = [len(find_near_copies(nearest_cosines(strewn(500, 32, 8, seed))[0]).pairs) for seed in range(20)]
    assert sum(named) <= 6


def test_all_copies_of_one_row_are_named() -> None:
    rows = strewn(300, 32, 8, 1)
    copies = rows[:1] + 0.01 * np.random.default_rng(0).standard_normal((4, 32))
    scores, order = nearest_cosines(np.concatenate([rows, copies]))
    found = find_near_copies(scores)
    mine = {int(order[0, column]) for row, column in found.pairs.tolist() if row == 0}
    assert mine == {300, 301, 302, 303}


@given(st.integers(0, 60), st.integers(1, 12), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_any_number_of_neighbours_is_fine(count: int, k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores = -np.sort(-random.uniform(-0.9, 1, (count, k)).astype(np.float32), axis=1)
    lacking = np.arange(k) >= random.integers(0, k + 1, count)[:, None]
    found = find_near_copies(np.where(lacking, np.float32(-1), scores))
    assert all(not lacking[row, column] for row, column in found.pairs.tolist())


def test_equal_distances_are_no_near_copies() -> None:
    assert len(find_near_copies(np.ones((100, K), np.float32)).pairs) == 0
    assert len(find_near_copies(np.full((100, K), 0.5, np.float32)).pairs) == 0


def test_too_few_rows_are_not_judged() -> None:
    scores = np.tile(np.linspace(1, 0, K, dtype=np.float32), (49, 1))
    assert find_near_copies(scores).dimension == 0


@given(arrays.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1)), st.floats(0.001, 0.5))
@settings(deadline=None)
def test_benjamini_and_hochberg_by_their_definition(chances: NDArray[np.float64], share: float) -> None:
    ordered = np.sort(chances)
    last = max((n for n in range(1, len(ordered) + 1) if ordered[n - 1] <= share * n / len(ordered)), default=0)
    named = by_false_share(chances, share)
    assert len(named) == last
    assert sorted(chances[named].tolist()) == ordered[:last].tolist()


@given(st.floats(0, 1), st.floats(1, 60), st.integers(5, 30))
def test_chance_is_a_probability_that_grows_with_the_ratio(ratio: float, dimension: float, count: int) -> None:
    values = chance(np.array([ratio / 2, ratio]), dimension, np.full(2, count))
    assert 0 <= values[0] <= values[1] <= 1
    assert values[1] == pytest.approx(1 - (1 - ratio**dimension) ** (count - 1), abs=1e-9)

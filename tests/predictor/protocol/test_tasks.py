from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import InvalidInputError
from actstore.layout.class_index import ClassIndex
from predictor.protocol.episodes import IGNORED, TaskSize, longest_task, plan_task, plan_tasks

LABELS = np.random.default_rng(0).integers(0, 9, 400)  # 35 to 60 rows of each class, shuffled
INDEX = ClassIndex([f"c{number}" for number in range(9)], LABELS)
ELIGIBLE = np.array([8, 1, 2, 3, 5, 6])


@given(
    st.integers(2, 6), st.integers(1, 6), st.one_of(st.none(), st.integers(1, 20)), st.integers(0, 2**40),
    st.integers(0, 10_000),
)  # fmt: skip
@settings(max_examples=60)
def test_a_task_is_pure_and_its_rows_are_right(
    way: int, shots: int, queries: int | None, seed: int, number: int
) -> None:
    size = TaskSize(way, shots, queries)
    task = plan_task(INDEX, ELIGIBLE, size, seed, number)
    assert set(task.labels) <= set(ELIGIBLE)
    assert len(set(task.labels)) == way
    np.testing.assert_array_equal(LABELS[task.support], np.repeat(task.labels[:, None], shots, 1))
    np.testing.assert_array_equal(LABELS[task.queries], task.labels[task.targets])
    rows = np.concatenate([task.support.ravel(), task.queries])
    assert len(set(rows.tolist())) == len(rows)  # no support row among the queries, and none twice
    counts = np.bincount(task.targets, minlength=way)
    expected = INDEX.counts[task.labels] - shots if queries is None else np.full(way, queries)
    np.testing.assert_array_equal(counts, expected)
    again = plan_task(INDEX, ELIGIBLE, size, seed, number)
    np.testing.assert_array_equal(task.queries, again.queries)
    np.testing.assert_array_equal(task.support, again.support)


@pytest.mark.parametrize("queries", [None, 4])
def test_fewer_shots_are_the_first_of_more(queries: int | None) -> None:
    for number in range(20):
        one, five = (plan_task(INDEX, ELIGIBLE, TaskSize(5, shots, queries), 3, number) for shots in (1, 5))
        np.testing.assert_array_equal(one.labels, five.labels)
        np.testing.assert_array_equal(one.support[:, 0], five.support[:, 0])


def test_categories_and_rows_are_drawn_uniformly() -> None:
    batch = plan_tasks(INDEX, ELIGIBLE, TaskSize(3, 1, 1), 0, range(6000))
    drawn = LABELS[batch.support[:, :, 0]]  # (tasks, way)
    for place in range(3):
        shares = np.bincount(drawn[:, place], minlength=9)[ELIGIBLE] / 6000
        assert np.abs(shares - 1 / 6).max() < 0.02  # four standard deviations
    of_one = np.bincount(batch.support[:, :, 0][drawn == 2], minlength=400)[LABELS == 2]
    expected = (drawn == 2).sum() / len(of_one)
    assert ((of_one - expected) ** 2 / expected).sum() < 2 * len(of_one)  # chi-squared, far from its tail


def test_a_batch_holds_the_tasks_padded_to_the_same_length() -> None:
    size = TaskSize(4, 2)
    batch = plan_tasks(INDEX, ELIGIBLE, size, 5, range(3, 20))
    assert batch.queries.shape[1] <= longest_task(INDEX, ELIGIBLE, size)
    for place, number in enumerate(range(3, 20)):
        task = plan_task(INDEX, ELIGIBLE, size, 5, number)
        asked = batch.targets[place] != IGNORED
        np.testing.assert_array_equal(batch.queries[place][asked], task.queries)
        np.testing.assert_array_equal(batch.targets[place][asked], task.targets)
        np.testing.assert_array_equal(batch.support[place], task.support)
    assert longest_task(INDEX, ELIGIBLE, TaskSize(4, 2, 7)) == 28


def test_seeds_and_numbers_give_other_tasks() -> None:
    drawn = {
        tuple(plan_task(INDEX, ELIGIBLE, TaskSize(), seed, number).support.ravel())
        for seed in range(10)
        for number in range(10)
    }
    assert len(drawn) == 100


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="way of 2 or more, got 1"):
        TaskSize(way=1)
    with pytest.raises(InvalidInputError, match="queries of 1 or more, got 0"):
        TaskSize(queries=0)
    with pytest.raises(InvalidInputError, match="7-way tasks need as many categories, got 6"):
        plan_task(INDEX, ELIGIBLE, TaskSize(7), 0, 0)
    with pytest.raises(InvalidInputError, match="rows, too few for 5 shots and 90 queries"):
        plan_task(INDEX, ELIGIBLE, TaskSize(5, 5, 90), 0, 0)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actstore.errors import InvalidInputError
from actstore.layout.class_index import ClassIndex
from actstore.streams.class_batches import ClassBatches
from actstore.streams.sampling import draw_support, epoch_order, generator, plan_batch

LABELS = np.random.default_rng(0).integers(0, 5, 300)
INDEX = ClassIndex([f"c{i}" for i in range(5)], LABELS)


@given(st.lists(st.integers(-1, 6), max_size=80))
def test_the_class_index_partitions_the_labelled_rows(labels: list[int]) -> None:
    array = np.array(labels, np.int32)
    index = ClassIndex([f"c{i}" for i in range(7)], array)
    for label in range(7):
        np.testing.assert_array_equal(index.rows(label), np.flatnonzero(array == label))
    assert index.counts.sum() == (array >= 0).sum()


@given(seed=st.integers(0, 2**63), step=st.integers(0, 2**40))
@settings(max_examples=50)
def test_a_plan_draws_rows_of_the_right_classes_and_is_pure(seed: int, step: int) -> None:
    labels = np.array([4, 1, 2])
    plan = plan_batch(INDEX, labels, seed, step, p_mean=0.5)
    np.testing.assert_array_equal(LABELS[plan.query_rows], labels)
    np.testing.assert_array_equal(LABELS[plan.statistic_rows], labels)
    again = plan_batch(INDEX, labels, seed, step, p_mean=0.5)
    np.testing.assert_array_equal(plan.query_rows, again.query_rows)
    np.testing.assert_array_equal(plan.use_mean, again.use_mean)


def test_steps_and_seeds_differ() -> None:
    draws = {tuple(plan_batch(INDEX, np.arange(5), s, t, 0.5).query_rows) for s in range(10) for t in range(10)}
    assert len(draws) > 95


def test_p_mean_and_uniformity() -> None:
    plans = [plan_batch(INDEX, np.arange(5), 0, step, 0.9) for step in range(4000)]
    share = np.mean([plan.use_mean for plan in plans])
    assert abs(share - 0.9) < 0.01
    drawn = np.bincount([plan.query_rows[3] for plan in plans], minlength=300)[LABELS == 3]
    expected = 4000 / len(drawn)
    assert (drawn > 0).all()
    assert ((drawn - expected) ** 2 / expected).sum() < 2 * len(drawn)  # chi-squared, far from its tail


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_shards_make_up_the_whole_batch(world_size: int) -> None:
    plan = plan_batch(INDEX, np.arange(5), 3, 8, 0.5)
    shards = [plan.shard(rank, world_size) for rank in range(world_size)]
    np.testing.assert_array_equal(np.concatenate([shard.query_rows for shard in shards]), plan.query_rows)
    np.testing.assert_array_equal(np.concatenate([shard.targets for shard in shards]), plan.targets)


@given(st.integers(0, 200), st.integers(0, 9), st.integers(0, 9))
def test_an_epoch_is_a_permutation(rows: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_order(rows, seed, epoch)) == list(range(rows))


def test_bad_plans() -> None:
    with pytest.raises(InvalidInputError, match="p_mean must be a probability"):
        plan_batch(INDEX, np.arange(5), 0, 0, 1.5)
    with pytest.raises(InvalidInputError, match="'empty' has no rows"):
        plan_batch(ClassIndex(["a", "empty"], np.zeros(3, int)), np.arange(2), 0, 0, 0.5)
    with pytest.raises(InvalidInputError, match="must not be negative"):
        generator(-1, 0)
    with pytest.raises(InvalidInputError, match="rank must be 0 to 1"):
        plan_batch(INDEX, np.arange(5), 0, 0, 0.5).shard(2, 2)


@pytest.mark.numeric
def test_batches_hold_means_and_rows_as_planned(make_store: Any) -> None:
    store = make_store()
    train = store["train"]
    batch = ClassBatches(train, seed=1, p_mean=0.5).batch(12)
    plan = batch.plan
    np.testing.assert_array_equal(batch.queries.numpy(), store.values[plan.query_rows].astype(np.float32))
    rows = store.values[plan.statistic_rows].astype(np.float32)
    expected = np.where(plan.use_mean[:, None], train.means()[plan.labels], rows)
    np.testing.assert_array_equal(batch.statistics.numpy(), expected)
    assert 0 < plan.use_mean.sum() < 7
    assert batch.targets.tolist() == list(range(7))


def test_statistics_of_several_rows_leave_the_other_draws_as_they_are() -> None:
    plans = [plan_batch(INDEX, np.arange(5), 2, step, 0.5, examples=(1, 4)) for step in range(2000)]
    alone = plan_batch(INDEX, np.arange(5), 2, 7, 0.5)
    for name in ("query_rows", "statistic_rows", "use_mean"):
        np.testing.assert_array_equal(getattr(plans[7], name), getattr(alone, name))
    counts = np.bincount(np.concatenate([plan.more for plan in plans]), minlength=4)
    assert len(counts) == 4
    assert (abs(counts / counts.sum() - 0.25) < 0.02).all()
    for plan in plans[:20]:
        np.testing.assert_array_equal(LABELS[plan.more_rows], np.repeat(np.arange(5)[:, None], 3, 1))


@pytest.mark.numeric
@pytest.mark.parametrize("resident", [False, True])
def test_a_statistic_is_the_mean_of_the_rows_drawn_for_it(make_store: Any, resident: bool) -> None:
    store = make_store()
    train = store["train"]
    seen = set()
    for batch in ClassBatches(train, seed=1, p_mean=0.3, examples=(1, 3), steps=12, resident=resident):
        plan = batch.plan
        for place, label in enumerate(plan.labels):
            rows = [plan.statistic_rows[place], *plan.more_rows[place, : plan.more[place]]]
            mean = store.values[rows].astype(np.float64).mean(0)
            expected = train.means()[label] if plan.use_mean[place] else mean
            np.testing.assert_allclose(batch.statistics[place], expected, rtol=1e-5, atol=1e-6)
            seen.add(len(rows))
    assert seen == {1, 2, 3}


@pytest.mark.numeric
@pytest.mark.parametrize("options", [{}, {"prefetch": 0}, {"resident": True}, {"prefetch": 5}])
def test_resumed_streamed_and_resident_batches_are_the_same(make_store: Any, options: dict[str, Any]) -> None:
    train = make_store()["train"]
    whole = list(ClassBatches(train, seed=5, steps=9))
    rest = list(ClassBatches(train, seed=5, start_step=4, steps=5, **options))
    assert [batch.step for batch in rest] == [4, 5, 6, 7, 8]
    for one, other in zip(whole[4:], rest, strict=True):
        assert torch.equal(one.statistics, other.statistics)
        assert torch.equal(one.queries, other.queries)


def test_ranks_share_a_batch_of_chosen_classes(make_store: Any) -> None:
    train = make_store()["train"]
    whole = ClassBatches(train, classes=["5", 2, "0"]).batch(3)
    parts = [ClassBatches(train, classes=["5", 2, "0"], rank=rank, world_size=2).batch(3) for rank in range(2)]
    assert torch.equal(torch.cat([part.queries for part in parts]), whole.queries)
    assert torch.equal(torch.cat([part.statistics for part in parts]), whole.statistics)
    assert whole.plan.labels.tolist() == [5, 2, 0]


@pytest.mark.numeric
@pytest.mark.parametrize("sort", [True, False])
def test_a_rank_holds_the_means_and_rows_of_its_classes_alone(make_store: Any, sort: bool) -> None:
    train = make_store(sort=sort)["train"]
    chosen = ["5", 2, "0", 6, 1]
    whole = ClassBatches(train, classes=chosen, p_mean=0.5).batch(3)
    parts = []
    for rank in range(3):
        stream = ClassBatches(train, classes=chosen, p_mean=0.5, rank=rank, world_size=3, resident=True)
        parts.append(stream.batch(3))
        assert len(stream._means) == len(parts[-1].targets) == [1, 2, 2][rank]
    for name in ("queries", "statistics", "targets"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))


def test_an_error_on_the_prefetch_thread_is_raised_to_the_trainer(make_store: Any) -> None:
    store = make_store()
    batches = ClassBatches(store["train"], steps=3)
    batches._p_mean = 7.0
    with pytest.raises(InvalidInputError, match="p_mean"):
        list(batches)


def test_leaving_the_stream_early_ends_its_thread(make_store: Any) -> None:
    import threading

    stream = iter(ClassBatches(make_store()["train"]))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actstore-prefetch")]


def test_a_dataset_shares_rows_among_ranks_and_shuffles_by_epoch(make_store: Any) -> None:
    train = make_store()["train"]
    seen = [values for rank in range(3) for values, _ in train.to_dataset(50, seed=1, rank=rank, world_size=3)]
    assert sum(map(len, seen)) == 1000
    dataset = train.to_dataset(50, seed=1)
    first = next(iter(dataset))[1]
    dataset.set_epoch(1)
    assert not torch.equal(first, next(iter(dataset))[1])
    assert len(dataset) == 20
    ordered = torch.cat([labels for _, labels in train.to_dataset(64)])
    np.testing.assert_array_equal(ordered.numpy(), train.labels)


def test_support_of_fewer_shots_is_the_start_of_more_and_does_not_depend_on_the_other_classes() -> None:
    index = ClassIndex(tuple("abcd"), np.array([0, 1, 2, 3] * 9))
    three = draw_support(index, [1, 3], 3, seed=5, draw=2)
    assert three.shape == (2, 3)
    assert all(len(set(row)) == 3 for row in three.tolist())
    assert (np.asarray([0, 1, 2, 3] * 9)[three] == [[1], [3]]).all()
    np.testing.assert_array_equal(draw_support(index, [3], 1, seed=5, draw=2)[0], three[1, :1])
    others = {tuple(draw_support(index, [1], 3, seed=5, draw=draw)[0].tolist()) for draw in range(20)}
    assert len(others) > 10


def test_support_needs_enough_rows() -> None:
    index = ClassIndex(("a", "b"), np.array([0, 0, 0, 1]))
    with pytest.raises(InvalidInputError, match=r"class 'b' has 1 rows, too few for 2 shots"):
        draw_support(index, [0, 1], 2, seed=0, draw=0)

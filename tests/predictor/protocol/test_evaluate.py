from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import actstore
from actstore.errors import InvalidInputError
from predictor.phi.network import Phi
from predictor.phi.rule import PhiMethod
from predictor.protocol.base_categories import BaseCategories, class_means, rows_of
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import AllWayTask, all_way_task, half_width, measure
from predictor.protocol.method import JointMethod, Method
from predictor.protocol.outcome import METRICS, harmonic_mean

pytestmark = pytest.mark.numeric


class Whole(JointMethod):
    """The same scores, but all together; keeps every support it was shown."""

    def __init__(self, inner: Method) -> None:
        self.inner, self.name, self.seen = inner, inner.name, []  # type: ignore[var-annotated]

    def prepare(self, base: BaseCategories) -> None:
        self.base = base
        self.inner.prepare(base)

    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        self.seen.append(support.clone())
        return self.inner.scores(queries, support)


class Oracle(JointMethod):
    name, share, finetuned, uses_support = "Linear", "100%", True, False

    def __init__(self) -> None:
        self.asked = 0

    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        self.asked += 1
        return queries[:, :10]


@pytest.fixture
def task(store: actstore.ActivationStore, categories: CategorySplit) -> AllWayTask:
    return all_way_task(store["train"], store["val"], categories)


@pytest.fixture
def method(task: AllWayTask, make_phi: Callable[..., Phi]) -> Method:
    made = PhiMethod(make_phi())
    made.prepare(task.base_categories)
    return made


def test_the_queries_are_the_test_rows_of_both_parts(
    task: AllWayTask, store: actstore.ActivationStore, categories: CategorySplit
) -> None:
    val, queries = store["val"], task.queries
    assert (len(queries.base_targets), len(queries.novel_targets)) == (56, 24)
    for part, names, first in (
        (queries.base_targets, categories.base, 0),
        (queries.novel_targets, categories.novel, 56),
    ):
        for place, name in enumerate(names):
            chosen = first + torch.nonzero(part == place)[:, 0]
            np.testing.assert_array_equal(queries.activations[chosen], val.of_class(name))


def test_a_draw_is_taken_once_unless_a_method_wrote_to_it(task: AllWayTask) -> None:
    first = task.support(2, 0, 1).activations
    expected = first.clone()
    assert task.support(2, 0, 1).activations is first
    first.mul_(2)
    assert torch.equal(task.support(2, 0, 1).activations, expected)
    with torch.inference_mode():
        task.support(1, 0, 1)
        assert torch.equal(task.support(1, 0, 1).activations, task.support(1, 0, 1).activations)


def test_rows_equal_a_plain_loop_over_draws(
    task: AllWayTask, method: Method, store: actstore.ActivationStore, categories: CategorySplit
) -> None:
    val = store["val"]
    order = [*categories.base, *categories.novel]
    truth = np.array([order.index(val.classes[label]) for label in val.labels])
    base = truth < 7
    found = measure(method, task, [1, 3], draws=4, seed=2)
    assert [row.shots for row in found] == ["1", "3"]
    for row, shots in zip(found, (1, 3), strict=True):
        plain: dict[str, list[float]] = {"top1_large": [], "top1_few": [], "harmonic_mean": [], "joint": []}
        for draw in range(4):
            guess = method.scores(val.to_torch(), task.support(shots, 2, draw).activations).argmax(1).numpy()
            large, few = 100 * (guess == truth)[base].mean(), 100 * (guess == truth)[~base].mean()
            plain["top1_large"].append(large)
            plain["top1_few"].append(few)
            plain["harmonic_mean"].append(harmonic_mean(large, few))
            plain["joint"].append(100 * (guess == truth).mean())
        assert row.draws == 4
        for name, values in plain.items():
            assert row.mean[name] == pytest.approx(np.mean(values))
            assert row.interval[name] == pytest.approx(3.182 * np.std(values, ddof=1) / 2, rel=2e-3)
        assert row.mean.keys() == row.interval.keys() == METRICS.keys()
    assert found[0].interval["top1_few"] > 0


def test_separable_or_not_the_rows_are_the_same(task: AllWayTask, method: Method) -> None:
    """But for the AUROC: what adapts to all categories cannot be asked as if half of them were unknown."""
    whole, separable = (measure(one, task, [1, 2], draws=3, seed=1) for one in (Whole(method), method))
    for one, other in zip(whole, separable, strict=True):
        assert np.isnan(one.mean["auroc"])
        assert 0 <= other.mean["auroc"] <= 100
        for row in (one, other):
            row.values.pop("auroc")
        assert (one.shots, one.values) == (other.shots, other.values)


def test_every_method_gets_the_same_draws(task: AllWayTask, method: Method) -> None:
    one, other = Whole(method), Whole(method)
    measure(one, task, [1, 2, 3], draws=3, seed=5)
    measure(other, task, [3, 2], draws=3, seed=5)
    assert [rows.shape[:2] for rows in one.seen] == [(3, shots) for shots in (1, 2, 3) for _ in range(3)]
    for draw in range(3):
        np.testing.assert_array_equal(one.seen[6 + draw], other.seen[draw])  # 3 shots, asked first or last
        np.testing.assert_array_equal(one.seen[draw], other.seen[draw][:, :1])  # 1 shot: the first of the three
    different = Whole(method)
    measure(different, task, [3], draws=3, seed=6)
    assert any((a != b).any() for a, b in zip(different.seen, other.seen[:3], strict=True))
    assert (other.seen[0] != other.seen[1]).any()


def test_support_is_of_the_novel_classes_in_their_order(task: AllWayTask, store: actstore.ActivationStore) -> None:
    support, train = task.support(2, 0, 0), store["train"]
    names = [[train.classes[train.labels[row]] for row in rows] for rows in support.rows]
    assert names == [["c9"] * 2, ["c7"] * 2, ["c8"] * 2]
    np.testing.assert_array_equal(support.activations[1, 1], train[int(support.rows[1, 1])])


def test_a_method_that_needs_no_support_is_measured_once(task: AllWayTask) -> None:
    oracle, steps = Oracle(), list[int]()
    rows = measure(oracle, task, [1, 2, 3], draws=20, progress=steps.append)
    assert (len(rows), oracle.asked, steps) == (1, 1, [1])
    assert (rows[0].shots, rows[0].draws, rows[0].method.finetuned) == ("all", 1, True)
    assert np.isnan(rows[0].interval["top1_large"])


def test_a_method_of_a_single_draw_is_asked_about_no_other(task: AllWayTask, method: Method) -> None:
    trained = Whole(method)
    trained.only_draw = (2, 4)
    (row,) = measure(trained, task, [1, 2], draws=20)
    (shown,) = trained.seen
    assert torch.equal(shown, task.support(2, 0, 4).activations)
    assert (row.shots, row.draws) == ("2", 1)
    assert measure(trained, task, [1, 3], draws=20) == []
    trained.only_rows = task.support(2, 0, 3).rows
    with pytest.raises(InvalidInputError, match=r"\(2, 4\)"):  # such as with another seed
        measure(trained, task, [2], draws=20)


@pytest.mark.parametrize(
    ("count", "quantile"), [(2, 12.70620), (3, 4.30265), (4, 3.18245), (6, 2.57058), (20, 2.09302), (101, 1.98397)]
)
def test_the_interval_is_students(count: int, quantile: float) -> None:
    values = np.arange(count, dtype=float)
    assert half_width(values.tolist()) == pytest.approx(quantile * values.std(ddof=1) / count**0.5, rel=1e-5)


def test_the_interval_of_known_values() -> None:
    assert half_width([1, 2, 3, 4, 5, 6]) == pytest.approx(2.571 * 1.8708 / 6**0.5, rel=1e-3)
    assert half_width([7, 7, 7]) == 0
    assert np.isnan(half_width([3.0]))


def test_refused_tasks(store: actstore.ActivationStore, categories: CategorySplit, tmp_path: Path) -> None:
    train, val = store["train"], store["val"]
    with pytest.raises(InvalidInputError, match="support and test images both come from split 'train'"):
        all_way_task(train, train, categories)
    with pytest.raises(InvalidInputError, match="names no novel class"):
        all_way_task(train, val, CategorySplit(categories.base))
    with pytest.raises(InvalidInputError, match="novel class 'zebra' of the split is not among"):
        all_way_task(train, val, CategorySplit(categories.base, ("zebra",)))
    rows, labels = val.take(np.arange(80)), val.labels
    for what, kept in (("novel", labels < 7), ("base", labels >= 7)):
        splits = {"train": (rows, labels), "val": (rows[kept], labels[kept])}
        part = actstore.from_arrays(tmp_path / f"{what}.zarr", splits, classes=train.classes)
        with pytest.raises(InvalidInputError, match=f"val holds no row of a {what} class to test on"):
            all_way_task(part["train"], part["val"], categories)


def test_validation_categories_take_no_part(store: actstore.ActivationStore, categories: CategorySplit) -> None:
    held = categories.hold_out(["c0", "c1"])
    task = all_way_task(store["train"], store["val"], held)
    assert (len(task.base), task.novel) == (5, categories.novel)
    assert len(task.queries.activations) == 8 * 8


def test_too_many_shots(task: AllWayTask, method: Method) -> None:
    with pytest.raises(InvalidInputError, match="has 20 rows, too few for 21 shots"):
        measure(method, task, [21], draws=1)


def test_rows_of_classes_with_a_limit(store: actstore.ActivationStore) -> None:
    val, names = store["val"], ["c3", "c1"]
    rows, targets = rows_of(val, names)
    assert [val.classes[label] for label in val.labels[rows]] == [names[target] for target in targets]
    assert len(rows) == 16
    few, their = rows_of(val, names, most=9)
    assert len(set(few.tolist())) == 9
    assert [val.classes[label] for label in val.labels[few]] == [names[target] for target in their]
    np.testing.assert_array_equal(few, rows_of(val, names, most=9)[0])
    assert rows_of(val, names, most=16)[0].tolist() == rows.tolist()


def test_class_means_are_in_the_order_asked_for(store: actstore.ActivationStore, tmp_path: Path) -> None:
    train = store["train"]
    expected = [train.of_class(name).astype(np.float64).mean(0) for name in ("c4", "c0")]
    np.testing.assert_allclose(class_means(train, ("c4", "c0")), expected, rtol=1e-6)
    values: Any = (np.ones((2, 4), np.float32), np.array([0, 0]))
    poor = actstore.from_arrays(tmp_path / "p.zarr", {"train": values}, classes=["full", "empty"])
    with pytest.raises(InvalidInputError, match=r"class 'empty' has no rows in .*, so it has no mean"):
        class_means(poor["train"], ("full", "empty"))

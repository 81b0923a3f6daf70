from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from actstore.errors import DamagedError, InvalidInputError
from actstore.storage.atomic_file import with_checksum
from predictor.phi.network import Phi
from predictor.phi.rule import PhiMethod
from predictor.protocol.calibration import (
    FILE,
    Calibration,
    Tried,
    _by_category,
    _fit,
    fit_calibrations,
    fit_constant,
    load_calibrations,
    nearest_fit,
    save_calibrations,
)
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.outcome import Outcome
from predictor.protocol.stand_ins import StandInSource, choose_stand_ins

pytestmark = pytest.mark.numeric

LIMITS = st.lists(st.one_of(st.integers(-6, 6).map(float), st.floats(-6, 6)), min_size=1, max_size=12)


def outcome(base: list[float], novel: list[float]) -> Outcome:
    """Base queries that are right up to these biases, novel ones that are right above those."""
    return Outcome(np.zeros(len(base), int), np.zeros(len(novel), int), np.array(base), np.array(novel))


def plain_harmonic(outcomes: list[Outcome], bias: float) -> float:
    base = np.mean([100 * np.mean(bias <= one.base_limit) for one in outcomes])
    novel = np.mean([100 * np.mean(bias > one.novel_limit) for one in outcomes])
    return 0.0 if base * novel == 0 else float(2 / (1 / base + 1 / novel))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(LIMITS, LIMITS), min_size=1, max_size=3))
def test_the_best_bias_of_all_is_found(limits: list[tuple[list[float], list[float]]]) -> None:
    outcomes = [outcome([*base, -np.inf], [*novel, np.inf]) for base, novel in limits]
    edges = np.unique([edge for base, novel in limits for edge in (*base, *novel)])
    every = np.concatenate([edges, (edges[1:] + edges[:-1]) / 2, [edges[0] - 1, edges[-1] + 1, 0.0]])
    best = max(plain_harmonic(outcomes, bias) for bias in every)
    fit = fit_constant(outcomes)
    narrow = np.diff(edges).min(initial=1) < 2 * (edges[-1] - edges[0]) / 1000  # thinned to a thousand candidates
    assert fit.harmonic_mean == pytest.approx(best, abs=100 if narrow else 1e-9)
    assert fit.harmonic_mean == pytest.approx(plain_harmonic(outcomes, fit.novel_bias))
    assert fit.uncalibrated == pytest.approx(plain_harmonic(outcomes, 0))
    assert fit.harmonic_mean >= fit.uncalibrated


def test_where_nothing_can_be_right_the_bias_is_zero() -> None:
    fit = fit_constant([outcome([-np.inf], [np.inf])])
    assert (fit.novel_bias, fit.harmonic_mean) == (0, 0)


@pytest.fixture
def held(categories: CategorySplit) -> CategorySplit:
    return categories.hold_out(["c0", "c5", "c3"])


def calibrate(
    phi: Phi,
    train: actstore.Split,
    split: CategorySplit,
    shots: list[int],
    head: Any = None,
    tasks: int = 20,
    **more: Any,
) -> list[Calibration]:
    return fit_calibrations([PhiMethod(phi)], StandInSource(train, split, max(shots)), shots, tasks, **more)


class PlainTasks:
    """Some categories learnt from examples beside the means of the base, query by query; on the tasks' own rows."""

    def __init__(self, phi: Phi, train: actstore.Split, source: StandInSource, shots: int, seed: int) -> None:
        self.phi, self.train, self.shots = phi, train, shots
        self.tasks = list(source.tasks(3, seed))

    def harmonic(self, aggregate: Any, bias: float) -> float:
        base, novel = np.mean([self.accuracies(task, aggregate, bias) for task in self.tasks], axis=0)
        return 0.0 if base * novel == 0 else float(2 / (1 / base + 1 / novel))

    def accuracies(self, task: Any, aggregate: Any, bias: float) -> list[float]:
        phi, count = self.phi, len(task.queries.base_targets)
        scores = [phi.logits(phi(task.base.means), task.queries.activations)]
        competing = [-1] * len(task.stand_ins) + task.rivals.tolist()
        for examples, rival in zip(task.examples[:, : self.shots], competing, strict=True):
            shown = examples.mean(0, keepdim=True) if aggregate == "mean" else examples
            novel = phi.logits(phi(shown), task.queries.activations).amax(1, keepdim=True) + bias
            novel[:count][task.queries.base_targets == rival] = -torch.inf
            scores.append(novel)
        truth = torch.cat([task.queries.base_targets, task.queries.novel_targets + len(task.base.names)])
        right = (torch.cat(scores, 1).argmax(1) == truth).double()
        return [100 * float(right[:count].mean()), 100 * float(right[count:].mean())]

    def check(self, fit: Calibration) -> None:
        """To 0.2: a query on a rounding may fall to either side."""
        assert fit.harmonic_mean == pytest.approx(self.harmonic(fit.aggregate, fit.novel_bias), abs=0.2)
        assert fit.uncalibrated == pytest.approx(self.harmonic(fit.aggregate, 0), abs=0.2)
        ways = ("max",) if self.shots == 1 else ("max", "mean")
        tried = [self.harmonic(way, bias) for way in ways for bias in np.linspace(-0.5, 1.5, 21)]
        assert fit.harmonic_mean >= max(tried) - 0.2


def test_on_validation_categories_against_a_plain_loop(
    store: actstore.ActivationStore, held: CategorySplit, make_phi: Callable[..., Phi]
) -> None:
    phi, train = make_phi(), store["train"]
    (fit,) = calibrate(phi, train, held, [2], tasks=3, seed=4)
    PlainTasks(phi, train, StandInSource(train, held, 2), 2, 4).check(fit)
    assert fit.fitted_on.startswith("3 validation categories, 3 draws; base queries: training rows")
    assert "3 validation categories" in fit.failed  # too few to rely on


def test_on_stand_ins_against_a_plain_loop(
    store: actstore.ActivationStore, categories: CategorySplit, make_phi: Callable[..., Phi]
) -> None:
    phi, train = make_phi(), store["train"]
    (fit,) = calibrate(phi, train, categories, [1], tasks=3, seed=4)
    PlainTasks(phi, train, StandInSource(train, categories, 1), 1, 4).check(fit)


@given(st.lists(st.tuples(LIMITS, LIMITS), min_size=1, max_size=3))
def test_of_the_best_a_share_is_given_for_a_higher_constant(limits: list[tuple[list[float], list[float]]]) -> None:
    outcomes = [outcome([*base, 1.0], [*novel, -1.0]) for base, novel in limits]
    best, higher = fit_constant(outcomes), fit_constant(outcomes, 0.1)
    assert higher.novel_bias >= best.novel_bias
    assert 0.9 * best.harmonic_mean <= higher.harmonic_mean <= best.harmonic_mean


def tried(one: Outcome, stand_ins: list[int]) -> Tried:
    """Queries of the base are of category 0, and of those that stand in there are as many of each."""
    novel = np.array(stand_ins).repeat(len(one.novel_limit) // len(stand_ins))
    asked = np.ones(len(one.base_limit) + len(novel), bool)
    return Tried(one, np.zeros(len(one.base_limit), np.int64), novel, np.array(stand_ins), asked)


def test_right_queries_are_counted_by_category() -> None:
    one = tried(outcome([2.0, 0.5, -np.inf], [1.0, 0.0, np.inf, 3.0]), [1, 2])
    biases = np.array([0.0, 0.5, 2.0, 4.0])
    right, asked = _by_category([one], biases)
    assert right[0].tolist() == [[2, 2, 1, 0], [0] * 4, [0] * 4]
    assert right[1].tolist() == [[0] * 4, [0, 1, 2, 2], [0, 0, 0, 1]]
    assert asked.tolist() == [[3, 0, 0], [0, 2, 2]]
    assert np.allclose(right.sum(1) / [[0.03], [0.04]], one.outcome.accuracies(biases))
    twice, both = _by_category([one, one], biases)
    assert (twice == 2 * right).all()
    assert (both == 2 * asked).all()


def test_a_stand_in_that_is_asked_nothing_about_is_counted_with_no_query() -> None:
    one = replace(tried(outcome([0.5] * 8, [-0.1] * 8), [1, 2]), stand_ins=np.array([1, 2, 3]))
    _, asked = _by_category([one], np.zeros(1))
    assert asked[1].tolist() == [0, 4, 4, 0]
    _fit([one, one], 1, None)


def test_a_constant_that_does_not_hold_elsewhere_has_failed() -> None:
    """What two categories ask for harms the two others, and the other way round, whichever tasks they are in."""
    low, high = outcome([0.5] * 8, [-0.1] * 8), outcome([2.0] * 8, [1.0] * 8)
    fit = _fit([tried(low, [1, 2]), tried(high, [3, 4])] * 3, 1, None)
    assert fit.failed
    assert fit.shortfall == 100
    sound = _fit([tried(high, [1, 2]), tried(high, [3, 4])], 1, None)
    assert (sound.failed, sound.gain) == ("", 100.0)


def test_of_a_task_no_image_of_its_stand_ins_is_fitted_on() -> None:
    """In every task one category asks for its own constant; what others ask for is wrong for it."""
    apart = [outcome([0.5 + shift] * 8, [-0.1 + shift] * 8) for shift in (0.0, 2.0)]
    recurring = [tried(apart[number % 2], [1 + number % 2]) for number in range(6)]
    assert _fit(recurring, 1, None).shortfall == 100
    same = [tried(apart[0], [1]) for _ in range(6)]  # as validation categories: in every task
    assert _fit(same, 1, None).shortfall == 0


@pytest.mark.parametrize("odd", [2, 3])
def test_a_constant_must_be_near_the_best_on_average(odd: int) -> None:
    """Some of twenty tasks ask for another one: half a point is lost by each."""
    common, other = outcome([1.5] * 10, [0.5] * 10), outcome([3.0] * 10, [0.5] * 8 + [2.0] * 2)
    tasks = [tried(common, [number]) for number in range(1, 21 - odd)]
    fit = _fit([*tasks, *(tried(other, [number]) for number in range(21 - odd, 21))], 1, None)
    assert fit.shortfall == pytest.approx(odd * (100 - 200 / (1 + 1 / 0.8)) / 20, abs=0.001)
    assert bool(fit.failed) is (odd > 2)


def poisoned(store: actstore.ActivationStore, path: Path, names: tuple[str, ...]) -> actstore.Split:
    """The same rows, but those of these classes are huge."""
    train = store["train"]
    rows, labels = train.take(np.arange(len(train))).copy(), train.labels
    rows[[train.classes[label] in names for label in labels]] = 9e5
    return actstore.from_arrays(path, {"train": (rows, labels)}, classes=train.classes, dtype="f4")["train"]


@pytest.mark.parametrize("validation", [True, False])
def test_rows_of_novel_categories_change_nothing(
    store: actstore.ActivationStore, categories: CategorySplit, held: CategorySplit, make_phi: Callable[..., Phi],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation: bool,
) -> None:  # fmt: skip
    split, phi = held if validation else categories, make_phi()
    taken: list[int] = []
    to_torch = actstore.Split.to_torch

    def watch(self: actstore.Split, rows: Any, **options: Any) -> Any:
        taken.extend(np.asarray(rows).tolist())
        return to_torch(self, rows, **options)

    other = poisoned(store, tmp_path / "p.zarr", split.novel)
    expected = calibrate(phi, store["train"], split, [1, 2], tasks=3)
    monkeypatch.setattr(actstore.Split, "to_torch", watch)
    found = calibrate(phi, other, split, [1, 2], tasks=3)
    assert [replace(fit, content=expected[0].content) for fit in found] == expected
    read = {other.classes[label] for label in other.labels[taken]}
    assert read == {*split.base, *split.validation}


def test_validation_categories_are_what_it_is_fitted_on(
    store: actstore.ActivationStore, held: CategorySplit, make_phi: Callable[..., Phi], tmp_path: Path
) -> None:
    phi = make_phi()
    other = poisoned(store, tmp_path / "p.zarr", held.validation)
    assert calibrate(phi, other, held, [1], tasks=2) != calibrate(phi, store["train"], held, [1], tasks=2)


def test_the_same_seed_the_same_calibration(
    store: actstore.ActivationStore, categories: CategorySplit, make_phi: Callable[..., Phi]
) -> None:
    phi, train, steps = make_phi(), store["train"], list[int]()
    first = calibrate(phi, train, categories, [3, 1], tasks=4, seed=1, progress=steps.append)
    assert steps == [1] * 4
    assert [fit.shots for fit in first] == [3, 1]
    assert first == calibrate(phi, train, categories, [3, 1], tasks=4, seed=1)
    assert first != calibrate(phi, train, categories, [3, 1], tasks=4, seed=2)


def test_it_helps_and_says_where_it_was_fitted(
    store: actstore.ActivationStore, categories: CategorySplit, make_phi: Callable[..., Phi]
) -> None:
    phi = make_phi(strength=0.0)
    (fit,) = calibrate(phi, store["train"], categories, [1], tasks=5)
    assert fit.novel_bias > 0
    assert fit.harmonic_mean > fit.uncalibrated
    assert fit.aggregate == "max"
    assert fit.fitted_on.startswith("5 tasks of base categories as stand-ins; training")
    assert fit.curve is not None
    assert fit.curve.keys() == {"bias", "base", "novel"}
    assert np.all(np.diff(fit.curve["base"]) <= 0)
    assert np.all(np.diff(fit.curve["novel"]) >= 0)


@pytest.mark.parametrize(
    ("base", "novel", "count"), [(80, 20, 16), (900, 100, 90), (7, 3, 2), (10, 1, 2), (50, 0, 5), (4, 4, 2)]
)
def test_stand_ins_are_as_many_as_novel_ones_among_all(base: int, novel: int, count: int) -> None:
    names = tuple(f"n{number:04}" for number in range(base + novel))
    split = CategorySplit(names[:base], names[base:])
    chosen = [choose_stand_ins(split, seed=3, task=task) for task in range(20)]
    assert {len(one) for one in chosen} == {count}
    assert all(set(one) <= set(split.base) and len(set(one)) == count for one in chosen)
    assert len(set(chosen)) > 3
    assert chosen == [choose_stand_ins(split, seed=3, task=task) for task in range(20)]


def test_stand_ins_are_the_validation_categories_where_there_are_some(held: CategorySplit) -> None:
    assert choose_stand_ins(held, 0, 0) == choose_stand_ins(held, 1, 5) == ("c0", "c5", "c3")


@pytest.mark.parametrize(
    ("split", "options", "message"),
    [
        (CategorySplit(("c0", "c1"), ("c2",)), {}, "2 base categories are too few .* [(]novel_bias=, --novel-bias"),
        (CategorySplit(("c0", "c1", "c3"), ("c2",)), {"tasks": 0}, "at least one task, got 0"),
        (CategorySplit(("c0", "c1", "c3"), ("c2",)), {"shots": [20]}, "20 shots leave no row of the stand-ins"),
        (CategorySplit(("c0", "c1", "c3"), ("c2",)), {"shots": [21]}, "has 20 rows, too few for 21 shots"),
    ],
)
def test_what_cannot_be_calibrated(
    store: actstore.ActivationStore, make_phi: Callable[..., Phi], split: CategorySplit, options: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        calibrate(make_phi(), store["train"], split, **{"shots": [1], "tasks": 1, **options})


def fitted(shots: int, bias: float = 0.5) -> Calibration:
    return Calibration(
        shots, bias, 30.0, 12.0, "somewhere", "mean", curve={"bias": [0.0], "base": [1.0], "novel": [2.0]}
    )


def test_the_calibration_of_the_nearest_shots() -> None:
    fits = [fitted(1), fitted(5)]
    assert [nearest_fit(fits, shots).shots for shots in (1, 2, 3, 4, 9)] == [1, 1, 1, 5, 5]
    with pytest.raises(InvalidInputError, match="run `ppa calibrate` first"):
        nearest_fit([], 1)


def test_calibrations_lie_beside_their_phi(tmp_path: Path) -> None:
    assert load_calibrations(tmp_path) == []
    save_calibrations(tmp_path, [fitted(1), fitted(2, 0.1 + 0.2)])
    assert load_calibrations(tmp_path) == [fitted(1), fitted(2, 0.1 + 0.2)]
    sound = (tmp_path / FILE).read_text()
    listed = json.loads(sound)["calibrations"]
    nan = json.dumps({"calibrations": [{**listed[0], "novel_bias": float("nan")}]})
    unknown = json.dumps({"calibrations": [{"shots": 1}]})
    for damage in ("", "{", "[]", "{}", sound.replace("0.3", "0.7"), nan, unknown, json.dumps([1])):
        (tmp_path / FILE).write_text(damage)
        with pytest.raises(DamagedError, match=r"is damaged: .*make it again with `ppa calibrate`"):
            load_calibrations(tmp_path)


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It says neither whose it is nor of which rows: it lies in the folder of the only phi that it can be of."""
    fields = {"shots": 1, "aggregate": "max", "novel_bias": 0.5, "harmonic_mean": 30.0, "uncalibrated": 12.0,
              "fitted_on": "x", "curve": {}, "held_out": 0.2, "held_out_of": "abc"}  # fmt: skip
    (tmp_path / FILE).write_text(json.dumps(with_checksum({"calibrations": [fields]})))
    (fit,) = load_calibrations(tmp_path)
    assert (fit.novel_bias, fit.aggregate, fit.key, fit.held_out_of) == (0.5, "max", "", "abc")
    again = replace(fitted(3), key="phi2", content="of these rows")
    assert save_calibrations(tmp_path, [again]) == [fit]
    assert load_calibrations(tmp_path) == [again]


def test_two_who_save_at_once_keep_what_both_found(tmp_path: Path) -> None:
    def save(number: int) -> None:
        save_calibrations(tmp_path, [replace(fitted(1), key=f"method {number}")])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(24)))
    assert {fit.key for fit in load_calibrations(tmp_path)} == {f"method {number}" for number in range(24)}

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from actstore.errors import DamagedError, InvalidInputError
from actstore.streams.sampling import draw_support
from predictor.phi.network import Phi
from predictor.phi.recogniser import novel_scores
from predictor.phi.rule import PhiRule
from predictor.protocol.calibration import (
    NAME,
    Calibration,
    calibrate,
    fit_bias,
    load_calibrations,
    nearest_fit,
    save_calibrations,
)
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.outcome import Outcome
from predictor.protocol.rows import class_means
from predictor.protocol.stand_ins import choose_stand_ins, discriminants

pytestmark = pytest.mark.numeric

LIMITS = st.lists(st.one_of(st.integers(-6, 6).map(float), st.floats(-6, 6)), min_size=1, max_size=12)


def outcome(base: list[float], novel: list[float]) -> Outcome:
    """Base queries that are right up to these biases, novel ones that are right above those."""
    return Outcome(np.zeros(len(base), int), np.zeros(len(novel), int), np.array(base), np.array(novel))


def plain_harmonic(outcomes: list[Outcome], bias: float) -> float:
    base = np.mean([100 * np.mean(bias <= one.base_limit) for one in outcomes])
    novel = np.mean([100 * np.mean(bias > one.novel_limit) for one in outcomes])
    return 0.0 if base * novel == 0 else float(2 / (1 / base + 1 / novel))


@settings(max_examples=60)
@given(st.lists(st.tuples(LIMITS, LIMITS), min_size=1, max_size=3))
def test_the_best_bias_of_all_is_found(limits: list[tuple[list[float], list[float]]]) -> None:
    outcomes = [outcome([*base, -np.inf], [*novel, np.inf]) for base, novel in limits]
    edges = np.unique([edge for base, novel in limits for edge in (*base, *novel)])
    every = np.concatenate([edges, (edges[1:] + edges[:-1]) / 2, [edges[0] - 1, edges[-1] + 1, 0.0]])
    best = max(plain_harmonic(outcomes, bias) for bias in every)
    fit = fit_bias(outcomes, 1, "max")
    narrow = np.diff(edges).min(initial=1) < 2 * (edges[-1] - edges[0]) / 1000  # thinned to a thousand candidates
    assert fit.harmonic_mean == pytest.approx(best, abs=100 if narrow else 1e-9)
    assert fit.harmonic_mean == pytest.approx(plain_harmonic(outcomes, fit.novel_bias))
    assert fit.uncalibrated == pytest.approx(plain_harmonic(outcomes, 0))
    assert fit.harmonic_mean >= fit.uncalibrated


def test_where_nothing_can_be_right_the_bias_is_zero() -> None:
    fit = fit_bias([outcome([-np.inf], [np.inf])], 1, "max")
    assert (fit.novel_bias, fit.harmonic_mean) == (0, 0)


@pytest.fixture
def held(categories: CategorySplit) -> CategorySplit:
    return categories.hold_out(["c0", "c5", "c3"])


class PlainTasks:
    """Some categories learnt from examples beside the means of the base, query by query; see `calibrate`."""

    def __init__(self, phi: Phi, train: actstore.Split, shots: int, seed: int) -> None:
        self.phi, self.train, self.shots, self.seed = phi, train, shots, seed
        self.tasks: list[tuple[tuple[str, ...], tuple[str, ...], Callable[[Any], Any]]] = []

    def add(
        self, base: tuple[str, ...], novel: tuple[str, ...], change: Callable[[Any], Any] = lambda rows: rows
    ) -> None:
        self.tasks.append((base, novel, change))

    def harmonic(self, aggregate: Any, bias: float) -> float:
        found = [self.accuracies(number, aggregate, bias) for number in range(len(self.tasks))]
        base, novel = np.mean(found, axis=0)
        return 0.0 if base * novel == 0 else float(2 / (1 / base + 1 / novel))

    def accuracies(self, number: int, aggregate: Any, bias: float) -> list[float]:
        (base, novel, change), train, phi = self.tasks[number], self.train, self.phi
        labels = np.array([train.class_index.position(name) for name in novel])
        support = draw_support(train.class_index, labels, self.shots, self.seed, number)
        examples = change(train.to_torch(support.ravel())).reshape(len(novel), self.shots, 16)
        parameters, found = phi(change(class_means(train, base))), []
        for names in (base, novel):
            rows = [
                row for row in range(len(train)) if train.classes[train.labels[row]] in names and row not in support
            ]
            queries = change(train.to_torch(rows))
            scores = [phi.logits(parameters, queries), novel_scores(PhiRule(phi), queries, examples, aggregate) + bias]
            truth = [(*base, *novel).index(train.classes[train.labels[row]]) for row in rows]
            found.append(100 * float((torch.cat(scores, 1).argmax(1) == torch.tensor(truth)).float().mean()))
        return found

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
    plain = PlainTasks(phi, train, shots=2, seed=4)
    for _ in range(3):
        plain.add(held.base, held.validation)
    plain.check(fit)
    assert fit.fitted_on == "3 validation categories, 3 draws; base queries: training rows"


def test_on_stand_ins_against_a_plain_loop(
    store: actstore.ActivationStore, categories: CategorySplit, make_phi: Callable[..., Phi]
) -> None:
    """What the head's rows of the stand-ins span is taken out of every activation, by least squares."""
    phi, train = make_phi(), store["train"]
    head = torch.randn(7, 16, generator=torch.Generator().manual_seed(0))
    (fit,) = calibrate(phi, train, categories, [1], head, tasks=3, seed=4)
    plain = PlainTasks(phi, train, shots=1, seed=4)
    centre = class_means(train, categories.base).mean(0)
    for task in range(3):
        chosen = choose_stand_ins(categories, 4, task)
        others = tuple(name for name in categories.base if name not in chosen)
        spanned = (head - head.mean(0))[[categories.base.index(name) for name in chosen]].T.double()  # (dim, stand-in)

        def unlearn(rows: torch.Tensor, spanned: torch.Tensor = spanned) -> torch.Tensor:
            away = (rows - centre).double().T
            kept: torch.Tensor = away - spanned @ torch.linalg.lstsq(spanned, away).solution
            return (centre + kept.T.float()).clamp_min(0)

        plain.add(others, chosen, unlearn)
    plain.check(fit)


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
    assert calibrate(phi, other, split, [1, 2], tasks=3) == expected
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
    phi, head = make_phi(strength=0.0), torch.randn(7, 16, generator=torch.Generator().manual_seed(0))
    (fit,) = calibrate(phi, store["train"], categories, [1], tasks=5)
    assert fit.novel_bias > 0
    assert fit.harmonic_mean > fit.uncalibrated
    assert fit.aggregate == "max"
    assert fit.fitted_on == "5 tasks of base categories as stand-ins, linear discriminants taken out; training rows"
    assert fit.curve.keys() == {"bias", "base", "novel"}
    assert np.all(np.diff(fit.curve["base"]) <= 0)
    assert np.all(np.diff(fit.curve["novel"]) >= 0)
    (with_head,) = calibrate(phi, store["train"], categories, [1], head, tasks=5)
    assert with_head.fitted_on.endswith("the classifier's rows taken out; training rows")
    assert with_head.novel_bias != fit.novel_bias


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


def test_discriminants_tell_each_class_from_the_others(
    store: actstore.ActivationStore, categories: CategorySplit
) -> None:
    """Against the textbook formula in float64; and every mean lies farthest along its own direction."""
    train, base = store["train"], categories.base
    means = np.stack([train.of_class(name).astype(float).mean(0) for name in base])
    within = np.concatenate([train.of_class(name).astype(float) - mean for name, mean in zip(base, means, strict=True)])
    covariance = within.T @ within / len(within)
    halfway = covariance + np.trace(covariance) / 16 * np.eye(16)
    expected = (means - means.mean(0)) @ np.linalg.inv(halfway)
    found = discriminants(train, base).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert ((means - means.mean(0)) @ found.T).argmax(0).tolist() == list(range(7))


@pytest.mark.parametrize(
    ("split", "options", "message"),
    [
        (CategorySplit(("c0", "c1"), ("c2",)), {}, "2 base categories are too few to calibrate on; use --novel-bias"),
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
    return Calibration(shots, "mean", bias, 30.0, 12.0, "somewhere", {"bias": [0.0], "base": [1.0], "novel": [2.0]})


def test_the_calibration_of_the_nearest_shots() -> None:
    fits = [fitted(1), fitted(5)]
    assert [nearest_fit(fits, shots).shots for shots in (1, 2, 3, 4, 9)] == [1, 1, 1, 5, 5]
    with pytest.raises(InvalidInputError, match="run `ppa calibrate` first"):
        nearest_fit([], 1)


def test_calibrations_lie_beside_their_phi(tmp_path: Path) -> None:
    assert load_calibrations(tmp_path) == []
    save_calibrations(tmp_path, [fitted(1), fitted(2, 0.1 + 0.2)])
    assert load_calibrations(tmp_path) == [fitted(1), fitted(2, 0.1 + 0.2)]
    sound = (tmp_path / NAME).read_text()
    listed = json.loads(sound)["calibrations"]
    (tmp_path / NAME).write_text(json.dumps(listed))  # as it was before there were checksums
    assert load_calibrations(tmp_path) == [fitted(1), fitted(2, 0.1 + 0.2)]
    nan = json.dumps([{**listed[0], "novel_bias": float("nan")}])
    for damage in ("", "{", "[]", "{}", sound.replace("0.3", "0.7"), nan, json.dumps([{"shots": 1}]), json.dumps([1])):
        (tmp_path / NAME).write_text(damage)
        with pytest.raises(DamagedError, match=r"is damaged: .*make it again with `ppa calibrate`"):
            load_calibrations(tmp_path)

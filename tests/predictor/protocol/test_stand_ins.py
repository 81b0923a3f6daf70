"""Tasks of base categories that stand in for novel ones: which rows they show, and what is taken out of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import actstore
import predictor
from baselines.class_mean import ClassMean
from baselines.nearest_neighbour import NearestNeighbour
from predictor.protocol.calibration import Calibration, fit_calibrations, load_calibrations, save_calibrations
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import all_way_task, measure
from predictor.protocol.setting import without_fitted_rows
from predictor.protocol.stand_ins import HeldOut, StandInSource, StandInTask, choose_stand_ins, knows_base
from predictor.report.all_way_table import differences, reference_of

pytestmark = pytest.mark.numeric


def make_store(path: Path, classes: int, dim: int, noise: float = 0.25) -> actstore.ActivationStore:
    random = np.random.default_rng(1)
    centres, splits = random.random((classes, dim)), {}
    for name, count in (("train", 12), ("val", 20)):
        labels = np.repeat(np.arange(classes), count)
        splits[name] = (np.abs(centres[labels] + noise * random.standard_normal((len(labels), dim))), labels)
    return actstore.from_arrays(path, splits, classes=[f"c{number:02}" for number in range(classes)])


def split_of(store: Any, base: int) -> CategorySplit:
    return CategorySplit(tuple(store.classes[:base]), tuple(store.classes[base:]))


def test_held_out_rows_are_a_share_of_each_class_and_part_of_a_larger_one(tmp_path: Path) -> None:
    val = make_store(tmp_path / "x.zarr", 6, 8)["val"]
    rows = HeldOut(val, 0.2).rows(val.classes[:3])
    assert np.bincount(val.labels[rows]).tolist() == [4, 4, 4]
    assert set(rows.tolist()) < set(HeldOut(val, 0.5).rows(val.classes[:3]).tolist())


def test_no_row_that_is_asked_about_was_trained_on_or_shown(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr", 10, 8)
    split, held = split_of(store, 8), HeldOut(store["val"], 0.5)
    allowed = {tuple(row) for row in store["val"].take(held.rows(split.base)).tolist()}
    validated = CategorySplit(split.base[:6], split.novel, split.base[6:])  # as they are: nothing is taken out
    for task in StandInSource(store["train"], validated, 3, held_out=held).tasks(2, 5):
        base = task.queries.activations[: len(task.queries.base_targets)]
        assert {tuple(row) for row in base.tolist()} <= allowed
    for number, task in enumerate(StandInSource(store["train"], split, 3, held_out=held).tasks(2, 5)):
        assert task.stand_ins == choose_stand_ins(split, 5, number)
        assert task.examples.shape == (len(task.stand_ins), 3, 8)
        assert len(task.queries.novel_targets) == len(task.stand_ins) * (10 + 12 - 3)  # held out, and not shown
        assert len(task.queries.base_targets) == len(task.base.names) * 10
        asked = {tuple(row) for row in task.queries.activations[len(task.queries.base_targets) :].tolist()}
        assert not asked & {tuple(row) for row in task.examples.flatten(0, 1).tolist()}


def test_a_limit_on_the_queries_leaves_out_no_category(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.protocol.stand_ins.MOST_QUERIES", 40)
    store = make_store(tmp_path / "x.zarr", 20, 8)
    held = HeldOut(store["val"], 0.5)  # 10 rows of each class
    (task,) = StandInSource(store["train"], split_of(store, 10), 2, held_out=held).tasks(1)
    assert (len(task.base.names), len(task.stand_ins)) == (8, 2)
    for targets, categories in ((task.queries.base_targets, 8), (task.queries.novel_targets, 2)):
        assert len(targets) == 40
        assert len(targets.unique()) == categories


def uneven_store(path: Path, few: int) -> actstore.ActivationStore:
    """Of six classes, 12 training rows and 20 held-out ones each, but c01 has a few of these."""
    random, splits = np.random.default_rng(1), {}
    centres = random.random((6, 8))
    for name, counts in (("train", [12] * 6), ("val", [20, few, 20, 20, 20, 20])):
        labels = np.repeat(np.arange(6), counts)
        splits[name] = (np.abs(centres[labels] + 0.25 * random.standard_normal((len(labels), 8))), labels)
    return actstore.from_arrays(path, splits, classes=[f"c{number:02}" for number in range(6)])


def test_of_what_a_network_was_trained_on_no_training_row_is_asked_about(tmp_path: Path) -> None:
    """Training rows are examples of a class with few held-out rows alone, which costs the others none."""
    store = uneven_store(tmp_path / "x.zarr", few=11)
    split, held = split_of(store, 4), HeldOut(store["val"])  # 4 rows of each class, 2 of c01
    store.add_provenance(trained_classes=list(split.base))
    store = actstore.open(tmp_path / "x.zarr")
    source = StandInSource(store["train"], split, 3, held_out=held)
    assert source.short_of_rows == ["c01"]
    assert "examples of 1 categories" in source.describe(20)
    assert StandInSource(store["train"], split, 1, held_out=held).short_of_rows == []
    allowed = {tuple(row) for row in store["val"].take(held.rows(split.base)).tolist()}
    for task in source.tasks(4):
        assert {tuple(row) for row in task.queries.activations.tolist()} <= allowed
        shown = {name: {tuple(row) for row in rows.tolist()}
                 for name, rows in zip(task.stand_ins, task.examples, strict=True)}  # fmt: skip
        assert all((rows <= allowed) == (name != "c01") for name, rows in shown.items())


def test_a_class_of_one_image_does_not_stand_in(tmp_path: Path) -> None:
    """The others are calibrated at 5 shots as without it."""
    random, splits = np.random.default_rng(1), {}
    centres = random.random((12, 8))
    for name, counts in (("train", [1] + [12] * 11), ("val", [20] * 12)):
        labels = np.repeat(np.arange(12), counts)
        splits[name] = (np.abs(centres[labels] + 0.25 * random.standard_normal((len(labels), 8))), labels)
    store = actstore.from_arrays(tmp_path / "x.zarr", splits, classes=[f"c{number:02}" for number in range(12)])
    split = split_of(store, 9)
    fits = predictor.calibrate(ClassMean(), store, split, tasks=9, save=False, progress=False)
    assert [fit.shots for fit in fits] == [1, 2, 3, 5]
    assert "without 1 that has too few rows" in fits[0].fitted_on
    source = StandInSource(store["train"], split, 5, held_out=HeldOut(store["val"]))
    tasks = list(source.tasks(9))
    assert {name for task in tasks for name in task.stand_ins} == set(split.base[1:])
    assert all("c00" in task.base.names for task in tasks)


def test_held_out_rows_count_where_a_class_is_too_poor(tmp_path: Path) -> None:
    """c00 has one training row, and 8 held-out ones; a network that knows it is asked about those."""
    random, splits = np.random.default_rng(1), {}
    centres = random.random((12, 8))
    for name, counts in (("train", [1] + [12] * 11), ("val", [40] * 12)):
        labels = np.repeat(np.arange(12), counts)
        splits[name] = (np.abs(centres[labels] + 0.25 * random.standard_normal((len(labels), 8))), labels)
    store = actstore.from_arrays(tmp_path / "x.zarr", splits, classes=[f"c{number:02}" for number in range(12)])
    split, held = split_of(store, 9), HeldOut(store["val"])
    poor = {most: StandInSource(store["train"], split, most, held).too_poor for most in (1, 2)}
    assert poor == {1: set(), 2: {"c00"}}  # one example, and held-out rows to ask about
    assert StandInSource(store["train"], split, 1).too_poor == {"c00"}
    store.add_provenance(trained_classes=list(split.base))
    source = StandInSource(actstore.open(tmp_path / "x.zarr")["train"], split, 5, held)
    assert source.too_poor == set()
    assert {name for task in source.tasks(9) for name in task.stand_ins} == set(split.base)


def test_a_constant_of_other_shots_is_not_used(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr", 12, 8)
    split, method = split_of(store, 8), ClassMean()
    fits = predictor.calibrate(method, store, split, shots=1, tasks=4, save=False, progress=False)
    method.calibrations = [replace(fit, failed="") for fit in fits]
    results = predictor.evaluate(method, store, split, shots=(1, 3), draws=2, progress=False)
    assert [record["shots"] for record in results.records if record["variant"] == "calibrated"] == ["1"]
    (said,) = (text for text in results.warnings if "constant was" in text)
    assert said == "no constant was fitted for 3 shots: Nearest class mean, 100%; calibrate=True fits it"
    assert "Nearest class mean (no constant was fitted)" in results.to_text()
    assert not any("calibration failed" in text for text in (*results.warnings, results.to_text()))
    method.calibrations = [Calibration(1, 0.1, 0, 0, "")]  # given by hand: for all
    results = predictor.evaluate(method, store, split, shots=(1, 3), draws=2, progress=False)
    assert [record["shots"] for record in results.records if record["variant"] == "calibrated"] == ["1", "3"]


def test_no_query_is_compared_with_itself(tmp_path: Path) -> None:
    store = uneven_store(tmp_path / "x.zarr", few=11)
    for task in StandInSource(store["train"], split_of(store, 4), 3, held_out=HeldOut(store["val"])).tasks(4):
        method = NearestNeighbour()
        method.prepare(task.base)
        count = len(task.queries.base_targets)
        assert method.base_scores(task.queries.activations).max() < 1 - 1e-6
        novel = method.novel_scores(task.queries.activations, task.examples)
        assert novel.masked_fill(task.is_rival_of_itself, 0).max() < 1 - 1e-6
        if "c01" in task.base.names:
            assert count == (4 + 2) * (len(task.base.names) - 1) + (2 + 2)  # held-out and training rows


def test_without_held_out_rows_no_query_is_known(tmp_path: Path) -> None:
    store = uneven_store(tmp_path / "x.zarr", few=11)
    for task in StandInSource(store["train"], split_of(store, 4), 2).tasks(3):
        method = NearestNeighbour()
        method.prepare(task.base)
        asked = task.queries.activations[: len(task.queries.base_targets)]
        assert len(asked) == 2 * len(task.base.names)  # a fifth of 12
        assert method.base_scores(asked).max() < 1 - 1e-6


@pytest.mark.parametrize("few", [11, 40])
def test_a_class_with_few_held_out_rows_does_not_spoil_constants(tmp_path: Path, few: int) -> None:
    """Nearest neighbours once lost twenty points by it."""
    random, splits = np.random.default_rng(2), {}
    centres = random.random((24, 16))
    for name, counts in (("train", [30] * 24), ("val", [40, few, *[40] * 22])):
        labels = np.repeat(np.arange(24), counts)
        splits[name] = (np.abs(centres[labels] + 0.3 * random.standard_normal((len(labels), 16))), labels)
    store = actstore.from_arrays(tmp_path / "x.zarr", splits, classes=[f"c{number:02}" for number in range(24)])
    split, held = split_of(store, 18), HeldOut(store["val"])
    source = StandInSource(store["train"], split, 5, held_out=held)
    fits = [replace(fit, failed="") for fit in fit_calibrations([NearestNeighbour()], source, [5], tasks=6)]
    task, _ = without_fitted_rows(all_way_task(store["train"], store["val"], split), fits)
    _, calibrated = measure(NearestNeighbour(), task, [5], 3, fits=fits)
    assert calibrated.mean["harmonic_mean"] > calibrated.mean["best_harmonic_mean"] - 3


def test_a_network_that_was_trained_on_the_rows_is_recognised(tmp_path: Path) -> None:
    """Its training rows are nearer to their mean than held-out ones; otherwise both are alike."""
    random = np.random.default_rng(1)
    centres = random.random((20, 16))
    for known, noise in ((False, 0.5), (True, 0.1)):
        splits = {}
        for name, spread in (("train", noise), ("val", 0.5)):
            labels = np.repeat(np.arange(20), 40)
            splits[name] = (np.abs(centres[labels] + spread * random.standard_normal((len(labels), 16))), labels)
        names = [f"c{number:02}" for number in range(20)]
        store = actstore.from_arrays(tmp_path / f"{known}.zarr", splits, classes=names)
        source = StandInSource(store["train"], split_of(store, 15), 1, held_out=HeldOut(store["val"], 0.5))
        assert source.knows_base is known
        assert ("was trained on" in source.describe(1)) is known
    store.add_provenance(trained_classes=["n01440764", "n07749582"])  # of the base none, and a record tells before rows
    train = actstore.open(tmp_path / "True.zarr")["train"]
    assert not knows_base(train, split_of(store, 15), HeldOut(store["val"], 0.5))


def test_without_held_out_rows_it_is_known_as_recorded(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr", 10, 8)
    split = split_of(store, 8)
    for trained, known in ((None, False), ((), False), (split.base, True), (split.novel, False)):
        if trained is not None:
            store.add_provenance(trained_classes=list(trained))
        opened = actstore.open(tmp_path / "x.zarr")
        assert knows_base(opened["train"], split, None) is known


def test_as_many_novel_categories_compete_for_each_known_one_as_in_the_test(tmp_path: Path) -> None:
    """Base categories compete as novel ones too where few stand in, but against no image of their own."""
    store = make_store(tmp_path / "x.zarr", 12, 8)
    split, held = split_of(store, 6), HeldOut(store["val"])
    for task in StandInSource(store["train"], split, 2, held_out=held).tasks(3):
        assert (len(task.stand_ins), len(task.rivals), len(task.base.names)) == (2, 2, 4)
        assert task.examples.shape == (4, 2, 8)
        of_base = len(task.queries.base_targets)
        assert of_base == 4 * (4 + 2)  # a fifth of 20 held-out rows, and a fifth of 12 training rows
        method = KnowsAll(task)
        method.prepare_for(task.base)
        assert method.novel_scores(task.queries.activations, task.examples)[:of_base].max() == 9
        (found,) = task.outcomes(method, [2])
        assert (found.base_limit == 1).all()


class KnowsAll(predictor.Method):
    """All scores are 0, but 1 of the true base category and 9 of a rival for images of its own."""

    name = "knows all"

    def __init__(self, task: StandInTask) -> None:
        self.task, self.targets = task, task.queries.base_targets

    def base_scores(self, queries: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(len(queries), len(self.base.names))
        scores[torch.arange(len(self.targets)), self.targets] = 1
        return scores

    def novel_scores(self, queries: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
        scores = torch.zeros(len(queries), len(support))
        for column, place in enumerate(self.task.rivals.tolist(), len(self.task.stand_ins)):
            scores[: len(self.targets)][self.targets == place, column] = 9
        return scores


def test_the_check_asks_about_no_more_images_than_the_test(tmp_path: Path) -> None:
    random, splits = np.random.default_rng(1), {}
    for name, counts in (("train", [30] * 8), ("val", [20] * 7 + [5])):
        labels = np.repeat(np.arange(8), counts)
        splits[name] = (random.random((len(labels), 8)), labels)
    store = actstore.from_arrays(tmp_path / "x.zarr", splits, classes=[f"c{number:02}" for number in range(8)])
    for task in StandInSource(store["train"], split_of(store, 7), 2, held_out=HeldOut(store["val"])).tasks(2):
        count = len(task.queries.base_targets)
        assert task.as_in_test[:count].all()  # fewer than the 112 of the test
        assert task.as_in_test[count:].sum() == 5 < len(task.queries.novel_targets)


@pytest.mark.parametrize("dim", [4, 16, 64])
def test_a_constant_is_found_whatever_the_dimensions(tmp_path: Path, dim: int) -> None:
    store = make_store(tmp_path / "x.zarr", 60, dim)
    split = split_of(store, 42)
    assert len(choose_stand_ins(split, 0, 0)) == 8
    source = StandInSource(store["train"], split, 1)
    (fit,) = fit_calibrations([ClassMean()], source, [1], tasks=5)
    assert fit.harmonic_mean > 100 / 60
    everyday = all_way_task(store["train"], store["val"], split)
    plain, shifted = measure(ClassMean(), everyday, [1], 5, fits=[replace(fit, failed="")])
    assert shifted.mean["harmonic_mean"] > 0.98 * plain.mean["harmonic_mean"]


def test_the_constant_of_a_baseline_is_the_best_of_a_plain_search(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr", 10, 8)
    train, split = store["train"], split_of(store, 8)
    held = HeldOut(store["val"], 0.5)
    source = StandInSource(train, split, 2, held_out=held)
    (fit,) = fit_calibrations([ClassMean()], source, [2], tasks=3)
    found: dict[float, list[tuple[float, float]]] = {}
    for task in source.tasks(3):
        known = [train.class_index.position(name) for name in task.base.names]
        means = torch.from_numpy(train.means()[known])
        queries, unit = task.queries.activations, torch.nn.functional.normalize
        base, novel = (unit(queries) @ unit(part).T for part in (means, task.examples.mean(1)))
        count = len(task.queries.base_targets)
        truth = torch.cat([task.queries.base_targets, task.queries.novel_targets + len(task.base.names)])
        for bias in (0.0, fit.novel_bias, *np.linspace(-0.2, 0.2, 21).tolist()):
            right = torch.cat([base, novel + bias], 1).argmax(1) == truth
            found.setdefault(bias, []).append(
                (float(right[:count].double().mean()), float(right[count:].double().mean()))
            )
    averaged = {bias: np.mean(figures, axis=0) for bias, figures in found.items()}
    harmonic = {bias: 200 * b * n / (b + n) if b + n else 0.0 for bias, (b, n) in averaged.items()}
    assert fit.harmonic_mean == pytest.approx(harmonic[fit.novel_bias], abs=0.5)
    assert fit.uncalibrated == pytest.approx(harmonic[0.0], abs=0.5)
    assert fit.harmonic_mean >= max(harmonic.values()) - 0.5


def test_constants_are_kept_and_given_to_their_own_method_alone(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr", 10, 8)
    train, split = store["train"], split_of(store, 8)
    methods = [NearestNeighbour(), NearestNeighbour(0.1), ClassMean()]
    fits = fit_calibrations(methods, StandInSource(train, split, 2), [1, 2], tasks=2)
    save_calibrations(tmp_path, fits[:4])
    save_calibrations(tmp_path, fits[4:])  # in the place of none: those of other methods stay
    assert load_calibrations(tmp_path) == fits
    save_calibrations(tmp_path, fits[4:])
    assert len(load_calibrations(tmp_path)) == 6
    for place, method in enumerate(methods):
        ours = [fit for fit in fits if fit.is_of(method, train, split)]
        assert ours == fits[2 * place : 2 * place + 2]
        assert not any(fit.is_of(method, train, split_of(store, 7)) for fit in fits)
        assert not any(fit.is_of(method, store["val"], split) for fit in fits)


def test_differences_are_of_the_same_draws(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr", 10, 8, noise=0.6)
    split = split_of(store, 8)
    task = all_way_task(store["train"], store["val"], split)
    method, ours = ClassMean(), ClassMean()
    ours.key = "phi2"
    fit = Calibration(1, 0.05, 0, 0, "")
    rows = [*measure(ours, task, [1], 6), *measure(method, task, [1], 6, fits=[fit])]
    reference = reference_of(rows, "1")
    assert reference is rows[0]
    same, shifted = (differences(row, reference) for row in rows[1:])
    assert (same["harmonic_mean_difference"], same["harmonic_mean_difference_ci95"]) == (0, 0)  # of two equal methods
    gaps = np.subtract(rows[2].values["top1_few"], rows[0].values["top1_few"])
    assert shifted["top1_few_difference"] == pytest.approx(gaps.mean(), abs=0.01)
    assert shifted["top1_few_difference_ci95"] == pytest.approx(2.5706 * gaps.std(ddof=1) / 6**0.5, abs=0.01)
    assert differences(rows[0], reference)["against"] is None

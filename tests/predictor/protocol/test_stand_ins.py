"""Tasks of base categories that stand in for novel ones: which rows they show, and what is taken out of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from baselines.calibration import attach_constants, calibrate_baselines

import actstore
from baselines.class_mean import ClassMean
from baselines.registry import Setting
from predictor.protocol.calibration import load_constants, save_constants
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import all_way_task, evaluate
from predictor.protocol.stand_ins import HeldOut, choose_stand_ins, most_directions, stand_in_tasks, usable
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
    given = {"most_shots": 3, "held_out": held, "tasks": 2, "seed": 5}
    validated = CategorySplit(split.base[:6], split.novel, split.base[6:])  # as they are: nothing is taken out
    for task in stand_in_tasks(store["train"], validated, **given):
        base = task.queries.activations[: len(task.queries.base_targets)]
        assert {tuple(row) for row in base.tolist()} <= allowed
    for number, task in enumerate(stand_in_tasks(store["train"], split, **given)):
        assert task.stand_ins == choose_stand_ins(split, 5, number)
        labels = store["val"].labels[task.rows]
        assert [[store.classes[label] for label in row] for row in labels] == [[name] * 3 for name in task.stand_ins]
        assert len(task.queries.novel_targets) == len(task.stand_ins) * (10 - 3)
        assert len(task.queries.base_targets) == len(task.base) * 10
        asked = {tuple(row) for row in task.queries.activations[len(task.queries.base_targets) :].tolist()}
        assert not asked & {tuple(row) for row in task.examples.flatten(0, 1).tolist()}


def test_a_limit_on_the_queries_leaves_out_no_category(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.protocol.stand_ins.MOST_QUERIES", 40)
    store = make_store(tmp_path / "x.zarr", 20, 8)
    held = HeldOut(store["val"], 0.5)  # 10 rows of each class
    (task,) = stand_in_tasks(store["train"], split_of(store, 10), 2, held_out=held, tasks=1)
    assert (len(task.base), len(task.stand_ins)) == (5, 5)
    for targets in (task.queries.base_targets, task.queries.novel_targets):
        assert len(targets) == 40
        assert len(targets.unique()) == 5


def test_held_out_rows_that_are_too_few_are_not_used(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr", 6, 8)
    split, held = split_of(store, 4), HeldOut(store["val"], 0.2)  # 4 rows of each class
    assert usable(held, split, 3) is held
    assert usable(held, split, 4) is None
    assert usable(None, split, 1) is None


@pytest.mark.parametrize("dim", [4, 16, 64])
def test_a_constant_is_found_whatever_the_dimensions(tmp_path: Path, dim: int) -> None:
    """With as many stand-ins as dimensions their rows span everything; not all of it may be taken out."""
    store = make_store(tmp_path / "x.zarr", 60, dim)
    split = split_of(store, 42)
    assert len(choose_stand_ins(split, 0, 0)) == 13
    (task,) = stand_in_tasks(store["train"], split, 1, tasks=1)
    centred = task.queries.activations - task.queries.activations.mean(0)
    assert torch.linalg.matrix_rank(centred) >= dim - most_directions(dim)
    (fit,) = calibrate_baselines(["class-mean"], Setting(store["train"], split), [1], tasks=5)
    assert fit.harmonic_mean > 100 / 60
    method = ClassMean(store["train"], split.base)
    everyday = all_way_task(store["train"], store["val"], split)
    method.constants = {1: fit.novel_bias}
    plain, shifted = evaluate(method, everyday, [1], 5)
    assert shifted.mean["harmonic_mean"] > 0.98 * plain.mean["harmonic_mean"]


def test_the_constant_of_a_baseline_is_the_best_of_a_plain_search(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr", 10, 8)
    train, split = store["train"], split_of(store, 8)
    held = HeldOut(store["val"], 0.5)
    (fit,) = calibrate_baselines(["class-mean"], Setting(train, split), [2], tasks=3, held_out=held)
    found: dict[float, list[tuple[float, float]]] = {}
    for task in stand_in_tasks(train, split, 2, held_out=held, tasks=3):
        means = task.change(torch.from_numpy(train.means()[[train.class_index.position(name) for name in task.base]]))
        queries, unit = task.queries.activations, torch.nn.functional.normalize
        base, novel = (unit(queries) @ unit(part).T for part in (means, task.examples.mean(1)))
        count = len(task.queries.base_targets)
        truth = torch.cat([task.queries.base_targets, task.queries.novel_targets + len(task.base)])
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
    setting = Setting(store["train"], split_of(store, 8))
    constants = calibrate_baselines(["nn", "class-mean"], setting, [1, 2], tasks=2)
    save_constants(tmp_path, constants)
    assert load_constants(tmp_path) == constants
    method = ClassMean(store["train"], setting.split.base)
    (one, two) = attach_constants(method, constants, setting)
    assert method.constants == {1: one.novel_bias, 2: two.novel_bias}
    other = Setting(store["train"], split_of(store, 7))
    assert attach_constants(ClassMean(store["train"], other.split.base), constants, other) == []


def test_differences_are_of_the_same_draws(tmp_path: Path) -> None:
    store = make_store(tmp_path / "x.zarr", 10, 8, noise=0.6)
    split = split_of(store, 8)
    task = all_way_task(store["train"], store["val"], split)
    method, ours = ClassMean(store["train"], split.base), ClassMean(store["train"], split.base)
    ours.key, method.constants = "phi2", {1: 0.05}
    rows = [*evaluate(ours, task, [1], 6), *evaluate(method, task, [1], 6)]
    reference = reference_of(rows, "1")
    assert reference is rows[0]
    same, shifted = (differences(row, reference) for row in rows[1:])
    assert (same["harmonic_mean_difference"], same["harmonic_mean_difference_ci95"]) == (0, 0)  # of two equal methods
    gaps = np.subtract(rows[2].values["top1_few"], rows[0].values["top1_few"])
    assert shifted["top1_few_difference"] == pytest.approx(gaps.mean(), abs=0.01)
    assert shifted["top1_few_difference_ci95"] == pytest.approx(2.5706 * gaps.std(ddof=1) / 6**0.5, abs=0.01)
    assert differences(rows[0], reference)["against"] is None

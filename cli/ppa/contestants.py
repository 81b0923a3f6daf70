"""Who takes part in the tables of `ppa eval` and `ppa sessions`, each with the task on the store whose activations it
reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

import actstore
from actstore import Split
from actstore.search.leading import SearchChoice
from baselines.calibration import attach_constants, fits_these
from baselines.registry import BASELINES, Setting, make_baselines
from cli.ppa.recognition import choose_categories, choose_methods
from predictor.phi.calibration import Calibration, load_calibrations
from predictor.phi.recogniser import Aggregate, OwnClassifier, PredictedParameters
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.constant import Constant, load_constants
from predictor.protocol.evaluation import AllWayTask, Shifted, all_way_task, class_means
from predictor.protocol.head import Head, head_for, read_head
from predictor.protocol.method import Method, Separable
from predictor.protocol.stand_ins import HeldOut
from predictor.training.trained_phi import TrainedPhi

Contestant = tuple[Method, AllWayTask]


def agreed_categories(phis: Sequence[TrainedPhi], split_file: Path | None, train: Split) -> CategorySplit:
    """Of the phis, which must agree with each other and with the file where one is given."""
    for phi in phis:
        phi.require_store(train)
    from_phi = bool(phis) and split_file is None
    categories = phis[0].categories if from_phi else choose_categories(split_file, train.classes)
    for phi in phis:
        if phi.categories != categories:
            first = phis[0].path if from_phi else split_file
            raise click.UsageError(f"{phi.path} was trained with other categories than {first}; compare like with like")
    return categories


def calibrations_of(
    phis: Sequence[TrainedPhi], methods: str, runs: Path, train: Split, categories: CategorySplit
) -> list[Constant | Calibration]:
    """All constants that rows of the table may have: those of its methods, fitted on these rows and categories."""
    ours = [fit for phi in phis for fit in load_calibrations(phi.path.parent)]
    names = choose_methods(methods, BASELINES, ("all", "none"))
    constants = [fit for fit in load_constants(runs) if fits_these(fit, train, categories)]
    return [*ours, *(fit for fit in constants if "all" in names or any(fit.key.startswith(name) for name in names))]


def without_fitted_rows(task: AllWayTask, fits: Sequence[Constant | Calibration]) -> tuple[AllWayTask, str | None]:
    """The task without the rows that these constants were fitted on, for all methods alike, and a line that says so."""
    # what an earlier content of the split held are its first rows
    rows_then = {task.test.content: len(task.test)} | {content: count for count, content in task.test.committed.history}
    used = {(fit.held_out, rows_then[fit.held_out_of]) for fit in fits if fit.held_out_of in rows_then}
    rows = sorted({row for share, first in used for row in HeldOut(task.test, share, first).rows(task.base).tolist()})
    if not rows:
        return task, None
    said = f"constants were fitted on {len(rows):,} rows of the base in {task.test.name}: no method is tested on those"
    return replace(task, without=tuple(rows)), said


def baselines(
    names: str,
    task: AllWayTask,
    categories: CategorySplit,
    head: Path | None,
    runs: Path,
    seed: int,
    search: SearchChoice,
) -> list[Contestant]:
    rows_of_head = None if head is None else head_for(read_head(head), categories.base, task.train.dim)
    setting = Setting(
        task.train, categories, rows_of_head, runs, seed, search=search, say=partial(click.echo, err=True)
    )
    constants = load_constants(runs)
    contestants = []
    for entry in make_baselines(choose_methods(names, BASELINES, ("all", "none")), setting):
        own = task
        if entry.store is not None:
            other = actstore.open(entry.store)
            parts = [other[part.name] if part.name in other.splits else part for part in (task.train, task.test)]
            own = replace(all_way_task(parts[0], parts[1], categories), without=task.without)
        else:
            attach_constants(entry.method, constants, setting)
        contestants.append((entry.method, own))
    return contestants


def shifted_too(contestants: Sequence[Contestant], shots: int) -> list[Contestant]:
    """Each method, and once more with its constant where it has one."""
    both: list[Contestant] = []
    for method, task in contestants:
        both.append((method, task))
        if isinstance(method, Separable) and method.constants:
            both.append((Shifted(method, shots), task))
    return both


def predictors(
    phis: Sequence[TrainedPhi], task: AllWayTask, aggregate: Aggregate, novel_bias: float | None
) -> list[Contestant]:
    """Every phi as it is, and once more with its calibration where there is one."""
    contestants: list[Contestant] = []
    for phi in phis:
        means = class_means(task.train, task.base)
        bias = novel_bias or 0.0
        variant = ", ".join(["mean"] * (aggregate == "mean") + [f"bias {bias:g}"] * bool(bias))
        contestants.append((PredictedParameters(phi.phi, means, aggregate, bias, variant), task))
        if novel_bias is None and (fits := load_calibrations(phi.path.parent)):
            fitted = PredictedParameters(phi.phi, means, settings=_settings(fits), fitted_on=fits[0].fitted_on)
            contestants.append((fitted, task))
    return contestants


def own_classifiers(head: Head, task: AllWayTask, fits: Sequence[Calibration]) -> list[Contestant]:
    """The network's own classifier as it is, and once more with what was fitted for it."""
    means = class_means(task.train, task.base)
    contestants: list[Contestant] = [(OwnClassifier(head, means), task)]
    if fits:
        fitted = OwnClassifier(head, means, settings=_settings(fits), fitted_on=fits[0].fitted_on)
        contestants.append((fitted, task))
    return contestants


def _settings(fits: Sequence[Calibration]) -> dict[int, tuple[Aggregate, float]]:
    return {fit.shots: (fit.aggregate, fit.novel_bias) for fit in fits}

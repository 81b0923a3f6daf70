"""What `ppa calibrate` fits: of a phi, of baselines, or of the network's own classifier.

store, train_split: the rows. head: the backbone's classifier. shots (None: those of all commands), tasks, seed: of the
stand-in tasks. held_out: the split whose base rows the network was not trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

import actstore
from actstore.errors import InvalidInputError
from actstore.search.leading import SearchChoice
from actstore.storage.place import Place
from baselines.calibration import CALIBRATED, calibrate_baselines
from baselines.registry import BASELINES, Setting
from cli.filekinds import CALIBRATION
from cli.filekinds import FIGURE as DRAWN
from cli.group import emit, table
from cli.options import find_store
from cli.outputs import claim
from cli.ppa.own_classifier import fit_own, read_own
from cli.ppa.recognition import (
    choose_categories,
    choose_methods,
    choose_shots,
    held_out_of,
    say_means_are_computed,
    store_of,
)
from cli.progress import progress
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.classifier.photo_start import choose_bias
from predictor.figures.lines import draw_trade_off
from predictor.phi.calibration import FIGURE, NAME, Calibration, calibrate, choose_for, save_calibrations
from predictor.protocol.constant import FILE, save_constants
from predictor.protocol.head import head_for, read_head
from predictor.training.trained_phi import TrainedPhi, load_phi

ADVICE = "replace it with --force"
MEANS = ["novel bias", "harmonic mean without", "with"]


def calibrate_phi(
    phi: Path, classifier: Path | None, force: bool, store: Place | None, train_split: str, head: Path | None,
    shots: str | None, held_out: str | None, tasks: int, seed: int,
) -> None:  # fmt: skip
    """Kept beside phi with a figure, and set in the classifier where one is named."""
    trained = load_phi(phi)
    folder = trained.path.parent
    claim((folder / NAME, CALIBRATION), (folder / FIGURE, DRAWN), inputs=[head], force=force, advice=ADVICE)
    learner = None if classifier is None else _open_classifier(classifier, trained)
    opened = actstore.open(store_of(store, [trained]))
    rows = opened[train_split]
    trained.require_store(rows)
    counts = choose_shots(shots, rows, trained.categories.base, spare=1)
    say_means_are_computed(rows)
    weights = None if head is None else head_for(read_head(head), trained.categories.base, rows.dim).weight
    test = held_out_of(opened, train_split, held_out)
    with progress("calibrate", tasks, "tasks") as bar:
        fits = calibrate(trained.phi, rows, trained.categories, counts, weights, tasks, seed, bar.update, test)
    save_calibrations(folder, fits)
    _draw(folder / FIGURE, fits)
    _finish(classifier, learner, fits, folder)


def calibrate_own_classifier(
    classifier: Path | None, split_file: Path | None, store: Place | None, train_split: str, head: Path | None,
    shots: str | None, held_out: str | None, tasks: int, seed: int,
) -> None:  # fmt: skip
    """Printed, and set in a classifier that has the network's own as its base."""
    store = find_store(store)
    opened = actstore.open(store)
    rows = opened[train_split]
    categories = choose_categories(split_file, rows.classes)
    own = read_own(head, categories, rows)
    learner = None if classifier is None else load_classifier(classifier)
    if learner is not None and (learner.base != categories.base or not learner.base_parameters.equal(own.weight)):
        raise InvalidInputError(f"{classifier} has another base than the rows of {head or store}; calibrate that one")
    say_means_are_computed(rows)
    counts = choose_shots(shots, rows, categories.base, spare=1)
    _finish(classifier, learner, fit_own(own, opened, rows, categories, counts, seed, tasks, held_out),
            classifier or head or store)  # fmt: skip


def calibrate_methods(
    methods: str, runs: Path, split_file: Path | None, force: bool, search: SearchChoice, store: Place | None,
    train_split: str, head: Path | None, shots: str | None, held_out: str | None, tasks: int, seed: int,
) -> None:  # fmt: skip
    """Constants of baselines, kept in the folder of their trainings."""
    store = find_store(store)
    claim((runs / FILE, CALIBRATION), inputs=[head, split_file], force=force, advice=ADVICE)
    opened = actstore.open(store)
    rows = opened[train_split]
    categories = choose_categories(split_file, rows.classes)
    say_means_are_computed(rows)
    rows_of_head = None if head is None else head_for(read_head(head), categories.base, rows.dim)
    names = CALIBRATED if methods == "all" else choose_methods(methods, BASELINES, ("all",))
    counts = choose_shots(shots, rows, categories.base, spare=1)
    setting = Setting(rows, categories, rows_of_head, runs, search=search, say=partial(click.echo, err=True))
    test = held_out_of(opened, train_split, held_out)
    with progress("calibrate", tasks, "tasks") as bar:
        constants = calibrate_baselines(names, setting, counts, tasks, seed, bar.update, test)
    if not constants:
        raise InvalidInputError(f"none of {methods} has base scores that do not depend on the support; nothing to fit")
    runs.mkdir(parents=True, exist_ok=True)
    path = save_constants(runs, constants)
    lines = [
        [fit.key, fit.share, fit.shots, f"{fit.novel_bias:+.4g}", f"{fit.uncalibrated:.1f}", f"{fit.harmonic_mean:.1f}"]
        for fit in constants
    ]
    text = table(["method", "D_large", "shots", *MEANS], lines)
    emit([asdict(fit) for fit in constants], f"{text}\n{_fitted_on(constants[0].fitted_on, path)}")


def _finish(path: Path | None, learner: Classifier | None, fits: list[Calibration], where: Path | Place) -> None:
    """Set the classifier by the fit for its number of examples, and print."""
    if path is not None and learner is not None:
        fit = choose_for(fits, learner.typical_shots())
        choose_bias(learner, fit.novel_bias, fit.aggregate)
        save_classifier(path, learner)
    lines = [
        [fit.shots, fit.aggregate, f"{fit.novel_bias:+.3f}", f"{fit.uncalibrated:.1f}", f"{fit.harmonic_mean:.1f}"]
        for fit in fits
    ]
    text = table(["shots", "aggregate", *MEANS], lines)
    emit([fit.to_json() for fit in fits], f"{text}\n{_fitted_on(fits[0].fitted_on, where)}")


def _fitted_on(what: str, where: object) -> str:
    return f"fitted on {what} (their figures, not those of novel categories); {where}"


def _open_classifier(path: Path, trained: TrainedPhi) -> Classifier:
    """The classifier to set, which must have the phi that is calibrated: scores of another differ in their scale."""
    learner = load_classifier(path)
    ours, theirs = trained.phi.state_dict(), learner.phi.state_dict()
    if ours.keys() != theirs.keys() or any(not ours[name].equal(theirs[name]) for name in ours):
        raise InvalidInputError(f"{path} was made with another phi than {trained.path}; calibrate that one")
    return learner


def _draw(path: Path, fits: Sequence[Calibration]) -> None:
    curves = {f"{_shots(fit)}, {fit.aggregate}": (fit.curve["novel"], fit.curve["base"]) for fit in fits}
    fit, points = fits[0], []
    for name, bias in (("no constant", 0.0), ("calibrated", fit.novel_bias)):
        place = min(range(len(fit.curve["bias"])), key=lambda i: abs(fit.curve["bias"][i] - bias))
        points.append((f"{name}, {_shots(fit)}", fit.curve["novel"][place], fit.curve["base"][place]))
    draw_trade_off(path, curves, points)


def _shots(fit: Calibration) -> str:
    return "1 shot" if fit.shots == 1 else f"{fit.shots} shots"

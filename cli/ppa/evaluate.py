"""`ppa eval`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.group import emit, example, json_option
from cli.options import seed_option, store_option
from cli.ppa.constants import without_fitted_rows
from cli.ppa.leaks import named_leaks
from cli.ppa.own_classifier import OwnHead, fit_own, read_own
from cli.ppa.recognition import (
    choose_categories,
    parse_numbers,
    require_test_split,
    say_means_are_computed,
    seen_novel,
    split_file_option,
    without_paper,
)
from cli.progress import progress

if TYPE_CHECKING:
    from actstore import Split
    from actstore.storage.place import Place
    from predictor.phi.calibration import Calibration
    from predictor.phi.recogniser import Aggregate
    from predictor.protocol.category_split import CategorySplit
    from predictor.protocol.constant import Constant
    from predictor.protocol.evaluation import AllWayTask, Row
    from predictor.protocol.method import Method
    from predictor.training.trained_phi import TrainedPhi

    Contestant = tuple[Method, AllWayTask]

UNTRAINED = "nn,class-mean"  # baselines that need neither training nor a classifier file


@click.command(
    name="eval",
    epilog=example(
        "ppa eval --store imagenet.zarr --phi runs/phi1 --phi runs/phi2",
        "ppa eval --phi runs/phi2 --methods all --head resnet50-900/best.safetensors --draws 50 --out table.md",
        "ppa eval --base head --head resnet50-900/best.safetensors --methods none",
        "ppa eval --methods nn --shots 1,5 --json",
    ),
)
@store_option(find=True)
@click.option("--phi", "phis", multiple=True, type=click.Path(path_type=Path), help="A run of `ppa train`; repeatable.")
@click.option(
    "--methods",
    default=UNTRAINED,
    show_default=True,
    help="Baselines, with commas: nn, class-mean, imprint, triplet, finetune, child, oracle, … or all, none.",
)
@click.option(
    "--base",
    type=click.Choice(["head"]),
    help="head: also the network's own classifier as base, centred examples beside it, as it is and calibrated.",
)
@click.option(
    "--head",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The backbone's classifier of the base classes, for --base head (default: that of the store's own network), "
    "imprint, finetune and child.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where `ppa baseline` left its trainings.",
)
@split_file_option
@click.option("--split", "train_split", default="train", show_default=True, help="Where support comes from.")
@click.option("--test-split", help="Where test images come from.  [default: val or test]")
@click.option("--shots", default="1,2,3", show_default=True, help="Examples per novel category; several with commas.")
@click.option("--draws", type=click.IntRange(1), default=20, show_default=True, help="Of the support.")
@click.option(
    "--aggregate",
    type=click.Choice(["max", "mean"]),
    default="max",
    show_default=True,
    help="Of a category's examples by phi: the highest score counts, or phi of their mean.",
)
@click.option(
    "--novel-bias",
    type=float,
    help="Added to phi's novel scores.  [default: none, and calibrated rows beside it where `ppa calibrate` was run]",
)
@seed_option
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write it: .md, .csv or .json.")
@json_option
def evaluate(
    store: Place, phis: tuple[Path, ...], methods: str, base: str | None, head: Path | None, runs: Path,
    split_file: Path | None, train_split: str, test_split: str | None, shots: str, draws: int, aggregate: str,
    novel_bias: float | None, seed: int, out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """All-way accuracy on base and novel categories: every method on the same support draws, beside the paper.

    Means over draws with 95% confidence intervals. The paper's figures are of 1000-way ImageNet.
    """
    import actstore
    from actstore.storage.atomic_file import write_atomic
    from cli.filekinds import TABLES
    from cli.outputs import claim
    from predictor.protocol.evaluation import all_way_task
    from predictor.report.all_way_table import records, to_csv, to_markdown
    from predictor.training.trained_phi import load_phi

    counts = parse_numbers("--shots", shots)
    if out is not None and out.suffix not in TABLES:
        raise click.UsageError(f"--out must end in .md, .csv or .json, got {out}")
    if out is not None:
        claim((out, TABLES[out.suffix]), inputs=[store, head, split_file, *phis])
    opened = actstore.open(store)
    train = opened[train_split]
    test = require_test_split(opened, train_split, test_split)
    trained = [load_phi(path) for path in phis]
    categories = agreed_categories(trained, split_file, train)
    own = None
    if base is not None:
        rows_of_head = read_own(head, categories, train)
        fitted = [] if novel_bias is not None else fit_own(rows_of_head, opened, train, categories, counts, seed)
        own = OwnHead(rows_of_head, fitted)
    fits = [*calibrations_of(trained, methods, runs), *(own.fits if own else [])]
    task, left_out = without_fitted_rows(all_way_task(train, test, categories), fits)
    if trained or methods != "nn":  # nearest neighbours alone need no means
        say_means_are_computed(train)
    contestants = [
        *baselines(methods, task, categories, head, runs, seed),
        *predictors(trained, task, aggregate, novel_bias),
        *(own.contestants(task) if own is not None else []),
    ]
    if not contestants:
        raise click.UsageError("nothing to measure: name a run with --phi, --base head, or baselines with --methods")
    rows = measure(contestants, counts, draws, seed)
    if lacking := without_paper(train):
        rows = [replace(row, paper_name="") for row in rows]
    said = (seen_novel(train, categories), named_leaks(opened, task, counts, draws, seed), lacking, left_out)
    warning = "\n".join(filter(None, said)) or None
    if out is not None:
        text = {".md": to_markdown, ".csv": to_csv}.get(out.suffix, lambda r, w: json.dumps(records(r, w), indent=1))
        write_atomic(out, (text(rows, warning).rstrip("\n") + "\n").encode())
    emit(records(rows, warning), as_json, lambda: to_markdown(rows, warning))


def agreed_categories(trained: list[TrainedPhi], split_file: Path | None, train: Split) -> CategorySplit:
    """Of the phis, which must agree with each other and with the file where one is given."""
    for one in trained:
        one.require_store(train)
    if not trained:
        return choose_categories(split_file, train.classes)
    categories = trained[0].categories if split_file is None else choose_categories(split_file, train.classes)
    for one in trained:
        if one.categories != categories:
            first = trained[0].path if split_file is None else split_file
            raise click.UsageError(f"{one.path} was trained with other categories than {first}; compare like with like")
    return categories


def baselines(
    names: str, task: AllWayTask, categories: CategorySplit, head: Path | None, runs: Path, seed: int
) -> list[Contestant]:
    """Each with the task on the store whose activations it reads."""
    import actstore
    from baselines.calibration import attach_constants
    from baselines.registry import Setting, make_baselines
    from predictor.protocol.constant import load_constants
    from predictor.protocol.evaluation import all_way_task
    from predictor.protocol.head import head_for, read_head

    if names == "none":
        return []
    given = None if head is None else head_for(read_head(head), categories.base, task.train.dim)
    setting = Setting(task.train, categories, given, runs, seed)
    constants = load_constants(runs)
    found = []
    for entry in make_baselines([name.strip() for name in names.split(",")], setting):
        own = task
        if entry.store is not None:
            other = actstore.open(entry.store)
            parts = [other[part.name] if part.name in other.splits else part for part in (task.train, task.test)]
            own = replace(all_way_task(parts[0], parts[1], categories), without=task.without)
        else:
            attach_constants(entry.method, constants, setting)
        found.append((entry.method, own))
    return found


def calibrations_of(trained: list[TrainedPhi], methods: str, runs: Path) -> list[Constant | Calibration]:
    """All constants that rows of the table may have."""
    from predictor.phi.calibration import load_calibrations
    from predictor.protocol.constant import load_constants

    ours = [fit for one in trained for fit in load_calibrations(one.path.parent)]
    return [*ours, *([] if methods == "none" else load_constants(runs))]


def predictors(
    trained: list[TrainedPhi], task: AllWayTask, aggregate: str, novel_bias: float | None
) -> list[Contestant]:
    """Every phi as it is, and once more with its calibration where there is one."""
    from predictor.phi.calibration import load_calibrations
    from predictor.phi.recogniser import PredictedParameters
    from predictor.protocol.evaluation import class_means

    found: list[Contestant] = []
    for one in trained:
        means = class_means(task.train, task.base)
        bias = novel_bias or 0.0
        variant = ", ".join(["mean"] * (aggregate == "mean") + [f"bias {bias:g}"] * bool(bias))
        way: Aggregate = "mean" if aggregate == "mean" else "max"
        found.append((PredictedParameters(one.phi, means, way, bias, variant), task))
        if novel_bias is None and (fits := load_calibrations(one.path.parent)):
            settings = {fit.shots: (fit.aggregate, fit.novel_bias) for fit in fits}
            found.append((PredictedParameters(one.phi, means, settings=settings, fitted_on=fits[0].fitted_on), task))
    return found


def measure(contestants: list[Contestant], shots: list[int], draws: int, seed: int) -> list[Row]:
    """Rows by number of shots, then in the order of the methods; those that take no support at the end."""
    from predictor.protocol.evaluation import evaluate, plan_draws

    total = sum(len(numbers) for method, _ in contestants for numbers in plan_draws(method, shots, draws).values())
    rows: list[Row] = []
    with progress("eval", total, "draws") as bar:
        for method, task in contestants:
            bar.set_postfix_str(f"{method.name} {method.share}", refresh=False)
            rows += evaluate(method, task, shots, draws, seed, bar.update)
    order = [*map(str, shots), "all"]
    return sorted(rows, key=lambda row: order.index(row.shots))

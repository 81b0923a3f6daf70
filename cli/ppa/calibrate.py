"""`ppa calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.group import emit, example, json_option
from cli.options import FILE, seed_option, store_option
from cli.ppa.options import (
    PHI_RUN,
    head_option,
    runs_option,
    search_options,
    shots_option,
    split_file_option,
    train_split_option,
)
from cli.ppa.recognition import parse_numbers


@click.command(
    epilog=example(
        "ppa calibrate --phi runs/phi2",
        "ppa calibrate --phi runs/phi2 --shots 1,2,3,5 --head resnet50-900/best.safetensors",
        "ppa calibrate --methods all --head resnet50-900/best.safetensors",
        "ppa calibrate --classifier mine.safetensors --novel-bias 0.8",
    )
)
@click.option("--phi", type=PHI_RUN, help="A run of `ppa train`, such as phi1 or runs/phi1.")
@click.option(
    "--classifier", type=FILE,
    help="A classifier of `ppa adapt` to set: from --novel-bias, or as fitted for its number of examples.",
)  # fmt: skip
@click.option(
    "--base", type=click.Choice(["head"]),
    help="head: of the network's own classifier with centred examples: of --head, else of the store's network.",
)  # fmt: skip
@click.option("--novel-bias", type=float, help="Set this constant by hand instead of fitting one.")
@click.option("--aggregate", type=click.Choice(["max", "mean"]), help="With --novel-bias: how examples are combined.")
@store_option()
@train_split_option()
@shots_option
@head_option("The backbone's classifier of the base classes.  [default: linear discriminants of the store]")
@click.option("--methods", help="Baselines instead of a phi, with commas: nn, class-mean, … or all.")
@runs_option("With --methods: where `ppa baseline` left its trainings; constants are kept there.")
@split_file_option
@click.option(
    "--held-out", help="Split whose base rows the network was not trained on: a fifth of them is fitted on, and left "
    "out by `ppa eval`.  [default: val or test; none: training rows]",
)  # fmt: skip
@click.option("--tasks", type=click.IntRange(1), default=20, show_default=True)
@search_options
@seed_option
@click.option("--force", is_flag=True, help="Replace a calibration that is there.")
@json_option
def calibrate(
    phi: Path | None, classifier: Path | None, base: str | None, novel_bias: float | None, aggregate: Any,
    methods: str | None, runs: Path, split_file: Path | None, search: str, device: str, force: bool, **fitting: Any,
) -> None:  # fmt: skip
    """Fit the constant on the novel scores, which trades base for novel accuracy, without any novel category.

    Base categories stand in for novel ones (validation categories of the split, where it has some). The result goes
    beside phi, where eval and adapt find it, with a figure of the trade-off; with --classifier into that file. With
    --methods the same is done for baselines whose base scores do not depend on the examples.
    """
    if novel_bias is not None:
        if classifier is None or phi is not None:
            raise click.UsageError("--novel-bias sets a classifier: give it with --classifier, and no --phi")
        set_by_hand(classifier, novel_bias, aggregate)
        return
    if methods is not None and (phi is not None or classifier is not None):
        raise click.UsageError("--methods calibrates baselines; --phi and --classifier are calibrated on their own")
    if methods is None and base is not None and phi is not None:
        raise click.UsageError("--base head calibrates the network's own classifier: give it without --phi")
    if methods is None and base is None and phi is None:
        raise click.UsageError(
            "name the run to calibrate with --phi, baselines with --methods, or set a --classifier with --novel-bias"
        )
    if phi is not None and aggregate is not None:
        raise click.UsageError("--aggregate belongs to --novel-bias; otherwise the better one is found")
    if fitting["shots"] is not None:
        parse_numbers("--shots", fitting["shots"])  # before anything is read
    from actstore.search.leading import SearchChoice
    from cli.ppa.calibrations import calibrate_methods, calibrate_own_classifier, calibrate_phi

    if methods is not None:
        calibrate_methods(methods, runs, split_file, force, SearchChoice(search, device), **fitting)
    elif phi is not None:
        calibrate_phi(phi, classifier, force, **fitting)
    else:
        calibrate_own_classifier(classifier, split_file, **fitting)


def set_by_hand(path: Path, novel_bias: float, aggregate: Any) -> None:
    from predictor.classifier.classifier_file import load_classifier, save_classifier
    from predictor.classifier.photo_start import choose_bias

    opened = load_classifier(path)
    choose_bias(opened, novel_bias, aggregate)
    save_classifier(path, opened)
    result = {"classifier": str(path), "novel_bias": opened.novel_bias, "aggregate": opened.aggregate}
    emit(result, f"{path}: novel bias {opened.novel_bias:g}, aggregate {opened.aggregate}")

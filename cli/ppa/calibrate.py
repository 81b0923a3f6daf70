"""`ppa calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.group import emit, example, json_option, table
from cli.options import FILE as EXISTING
from cli.options import seed_option
from cli.outputs import claim
from cli.ppa.options import (
    PHI_RUN,
    head_option,
    runs_option,
    search_options,
    shots_option,
    split_file_option,
    train_split_option,
)
from cli.ppa.recognition import categories_of, make_baselines, parse_shots, store_of
from cli.stores import store_option

if TYPE_CHECKING:
    from predictor import Calibration


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
    "--classifier", type=EXISTING,
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
    counts = parse_shots(fitting.pop("shots"))
    import actstore
    import baselines
    import predictor
    from predictor.protocol.calibration import FIGURE, FILE

    trained = [] if phi is None else [predictor.load_phi(phi)]
    folder = trained[0].path.parent if trained else runs
    if base is None or methods is not None:
        claim(folder / FILE, kept=[folder / FIGURE], inputs=[fitting["head"], split_file],
              force=force, advice="replace it with --force")  # fmt: skip
    opened = actstore.open(store_of(fitting.pop("store"), trained))
    train = opened[fitting["train_split"]]
    categories = categories_of(trained, split_file, train.classes)
    fitted: Any = trained
    if methods is not None:
        names = ",".join(baselines.CALIBRATED) if methods == "all" else methods
        given = {"head": fitting["head"], "runs": runs, "search": search, "device": device}
        fitted = make_baselines(names, train=train, split=categories, **given)
    elif phi is None:
        fitted = predictor.OwnClassifier(predictor.read_own_head(train, categories.base, fitting.pop("head")))
        fitting["head"] = None  # its own rows are what is measured: discriminants are taken out
    learner = None
    if classifier is not None:
        learner = predictor.open_for_calibration(classifier, trained[0] if trained else fitted, categories)
    fits = predictor.calibrate(
        fitted, opened, categories, shots=counts, head=fitting["head"], train=fitting["train_split"],
        test=fitting["held_out"], tasks=fitting["tasks"], seed=fitting["seed"], progress=True,
    )  # fmt: skip
    if classifier is not None and learner is not None:
        predictor.apply_calibrations(classifier, learner, fits)
    how = f"fitted on {fits[0].fitted_on} (their figures, not those of novel categories); {classifier or folder}"
    emit([asdict(fit) for fit in fits], f"{_table(fits)}\n{how}")


def _table(fits: Sequence[Calibration]) -> str:
    lines = [
        [fit.key, fit.share, str(fit.shots), fit.aggregate or "", f"{fit.novel_bias:+.4g}", f"{fit.uncalibrated:.1f}",
         f"{fit.harmonic_mean:.1f}", f"failed: {fit.failed}" if fit.failed else f"{fit.gain:+.1f}"]
        for fit in fits
    ]  # fmt: skip
    header = ["method", "D_large", "shots", "aggregate", "novel bias", "harmonic mean without", "with", "on other rows"]
    return table(header, lines)


def set_by_hand(path: Path, novel_bias: float, aggregate: Any) -> None:
    import predictor

    opened = predictor.set_constant(path, novel_bias, aggregate)
    result = {"classifier": str(path), "novel_bias": opened.novel_bias, "aggregate": opened.aggregate}
    emit(result, f"{path}: novel bias {opened.novel_bias:g}, aggregate {opened.aggregate}")

"""`ppa calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from cli.group import emit, example, json_option
from cli.options import seed_option
from cli.outputs import claim
from cli.ppa import options
from cli.ppa.recognition import categories_of, make_baselines, store_of
from cli.stores import Place, store_option


@click.command(
    epilog=example(
        "ppa calibrate --phi runs/phi2",
        "ppa calibrate --methods all --shots 1,2,3,5 --head resnet50-900/best.safetensors",
        "ppa calibrate --classifier mine.safetensors --novel-bias 0.8",
    )
)
@options.calibrated_options
@store_option()
@options.train_split_option()
@options.shots_option
@options.head_option("The backbone's classifier of the base classes.  [default: as trained in --runs]")
@click.option("--methods", help="Baselines instead of a phi, with commas: nn, class-mean, … or all.")
@options.runs_option("With --methods: where `ppa baseline` left its trainings; constants are kept there.")
@options.split_file_option
@click.option("--held-out", "test", help="Split whose base rows the network was not trained on: a fifth of them is "
              "fitted on, and left out by `ppa eval`.  [default: val or test; none: training rows]")  # fmt: skip
@click.option("--tasks", type=click.IntRange(1), default=20, show_default=True)
@options.search_options
@seed_option
@click.option("--force", is_flag=True, help="Replace a calibration that is there.")
@json_option
def calibrate(
    phi: Path | None, classifier: Path | None, base: str | None, novel_bias: float | None, aggregate: Any,
    methods: str | None, store: Place | None, train: str, shots: list[int] | None, head: Path | None, runs: Path,
    split_file: Path | None, search: str, device: str, force: bool, **fitting: Any,
) -> None:  # fmt: skip
    """Fit the constant on the novel scores, which trades base for novel accuracy, without any novel category.

    Base categories stand in for novel ones (validation categories of the split, where it has some). The result goes
    beside phi, where eval and adapt find it, with a figure of the trade-off; with --classifier into that file. With
    --methods the same is done for baselines whose base scores do not depend on the examples.
    """
    import predictor

    if novel_bias is not None:
        if classifier is None or phi is not None:
            raise click.UsageError("--novel-bias sets a classifier: give it with --classifier, and no --phi")
        made = predictor.set_constant(classifier, novel_bias, aggregate)
        result = {"classifier": str(classifier), "novel_bias": made.novel_bias, "aggregate": made.aggregate}
        emit(result, f"{classifier}: novel bias {made.novel_bias:g}, aggregate {made.aggregate}")
        return
    require_one(phi, classifier, base, methods, aggregate)
    if phi and head:
        raise click.UsageError("--head belongs to --methods and --base head; the constant of a phi needs none")
    import actstore
    import baselines
    from predictor.protocol import CALIBRATION_FILES, keys_replaced, shots_to_fit

    trained = [] if phi is None else [predictor.load_phi(phi)]
    folder = trained[0].path.parent if trained else runs
    opened = actstore.open(store_of(store, trained))
    rows = opened[train]
    categories = categories_of(trained, split_file, rows.classes)
    fitted: Any = trained
    if methods is not None:
        names = ",".join(baselines.CALIBRATED) if methods == "all" else methods
        making: dict[str, Any] = {"head": head, "runs": runs, "search": search, "device": device}
        fitted = make_baselines(names, train=rows, split=categories, **making)
    elif phi is None:
        fitted = predictor.OwnClassifier(predictor.read_own_head(rows, categories.base, head))
    categories.require_known(rows.classes, ("base", "novel"))
    counts, is_kept = shots_to_fit(shots, rows, categories, shown=True), phi is not None or methods is not None
    if is_kept:
        file, figure = (folder / name for name in CALIBRATION_FILES)
        there = keys_replaced([one.as_method() for one in fitted], folder, counts, rows, categories)
        what = "it" if methods is None else f"the constants of {', '.join(there)}"
        advice = f"replace {what} with --force"
        kept = [file, figure][bool(there) :]
        claim(*[file] * bool(there), kept=kept, inputs=[head, split_file], force=force, advice=advice)
    learner = None
    if classifier is not None:
        learner = predictor.open_for_calibration(classifier, trained[0] if trained else fitted, categories)
    fits = predictor.calibrate(
        fitted, opened, categories, shots=counts, train=train, save=is_kept, progress=True, **fitting
    )
    if classifier is not None and learner is not None:
        predictor.apply_calibrations(classifier, learner, fits)
    where = classifier or (folder if is_kept else "kept nowhere, as `ppa eval --base head` fits it itself")
    how = f"{fits.fitted_on} (their figures, not those of novel categories); {where}"
    emit([asdict(fit) for fit in fits], f"{fits}\n{how}")


def require_one(phi: Any, classifier: Any, base: Any, methods: Any, aggregate: Any) -> None:
    """What is to be fitted: a phi, baselines, or a network's own classifier."""
    if methods is not None and (phi or classifier):
        raise click.UsageError("--methods calibrates baselines; --phi and --classifier are calibrated on their own")
    if methods is None and base and phi:
        raise click.UsageError("--base head calibrates the network's own classifier: give it without --phi")
    if not (methods is not None or base or phi):
        raise click.UsageError(
            "name the run to calibrate with --phi, baselines with --methods, or set a --classifier with --novel-bias"
        )
    if phi and aggregate:
        raise click.UsageError("--aggregate belongs to --novel-bias; otherwise the better one is found")

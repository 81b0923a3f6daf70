"""`ppa calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from actstore.errors import InvalidInputError
from cli.group import emit, example, json_option, table
from cli.options import find_store, seed_option, store_option
from cli.ppa.constants import describe_constants, fit_baselines, held_out_of
from cli.ppa.own_classifier import fit_own, read_own
from cli.ppa.recognition import choose_categories, parse_numbers, say_means_are_computed, split_file_option
from cli.progress import progress

if TYPE_CHECKING:
    from torch import Tensor

    from actstore import Split
    from actstore.storage.place import Place
    from predictor.classifier.classifier import Classifier
    from predictor.phi.calibration import Calibration
    from predictor.training.trained_phi import TrainedPhi


@click.command(
    epilog=example(
        "ppa calibrate --phi runs/phi2",
        "ppa calibrate --phi runs/phi2 --shots 1,2,3,5 --head resnet50-900/best.safetensors",
        "ppa calibrate --methods all --head resnet50-900/best.safetensors",
        "ppa calibrate --classifier mine.safetensors --novel-bias 0.8",
    )
)
@click.option("--phi", type=click.Path(path_type=Path), help="A run of `ppa train`.")
@click.option(
    "--classifier",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A classifier of `ppa adapt` to set: from --novel-bias, or as fitted for its number of examples.",
)
@click.option(
    "--base",
    type=click.Choice(["head"]),
    help="head: of the network's own classifier with centred examples: of --head, else of the store's network.",
)
@click.option("--novel-bias", type=float, help="Set this constant by hand instead of fitting one.")
@click.option("--aggregate", type=click.Choice(["max", "mean"]), help="With --novel-bias: how examples are combined.")
@store_option()
@click.option("--split", "train_split", default="train", show_default=True)
@click.option("--shots", default="1,2,3,5", show_default=True)
@click.option(
    "--head",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The backbone's classifier of the base classes.  [default: linear discriminants of the store]",
)
@click.option("--methods", help="Baselines instead of a phi, with commas: nn, class-mean, … or all.")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True,
    help="With --methods: where `ppa baseline` left its trainings; constants are kept there.",
)  # fmt: skip
@split_file_option
@click.option(
    "--held-out",
    help="Split whose base rows the network was not trained on: a fifth of them is fitted on, and left out by "
    "`ppa eval`.  [default: val or test; none: training rows]",
)
@click.option("--tasks", type=click.IntRange(1), default=20, show_default=True)
@seed_option
@click.option("--force", is_flag=True, help="Replace a calibration that is there.")
@json_option
def calibrate(
    phi: Path | None, classifier: Path | None, base: str | None, novel_bias: float | None, aggregate: str | None,
    store: Place | None, train_split: str, shots: str, head: Path | None, methods: str | None, runs: Path,
    split_file: Path | None, held_out: str | None, tasks: int, seed: int, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Fit the constant on the novel scores, which trades base for novel accuracy, without any novel category.

    Base categories stand in for novel ones (validation categories of the split, where it has some). The result goes
    beside phi, where eval and adapt find it, with a figure of the trade-off; with --classifier into that file. With
    --methods the same is done for baselines whose base scores do not depend on the examples.
    """
    if novel_bias is not None:
        if classifier is None or phi is not None:
            raise click.UsageError("--novel-bias sets a classifier: give it with --classifier, and no --phi")
        set_by_hand(classifier, novel_bias, aggregate, as_json)
        return
    if methods is not None:
        if phi is not None or classifier is not None:
            raise click.UsageError("--methods calibrates baselines; --phi and --classifier are calibrated on their own")
        counts = parse_numbers("--shots", shots)
        baselines(methods, find_store(store), train_split, split_file, head, runs, counts, held_out, tasks, seed, force,
                  as_json)  # fmt: skip
        return
    if base is not None:
        if phi is not None:
            raise click.UsageError("--base head calibrates the network's own classifier: give it without --phi")
        own_classifier(head, find_store(store), train_split, split_file, classifier, parse_numbers("--shots", shots),
                       held_out, tasks, seed, as_json)  # fmt: skip
        return
    if phi is None:
        raise click.UsageError(
            "name the run to calibrate with --phi, baselines with --methods, or set a --classifier with --novel-bias"
        )
    if aggregate is not None:
        raise click.UsageError("--aggregate belongs to --novel-bias; otherwise the better one is found")
    counts = parse_numbers("--shots", shots)
    import actstore
    from cli.filekinds import CALIBRATION
    from cli.filekinds import FIGURE as DRAWN
    from cli.outputs import claim
    from predictor.phi.calibration import FIGURE, NAME, save_calibrations
    from predictor.phi.calibration import calibrate as fit
    from predictor.training.trained_phi import load_phi

    trained = load_phi(phi)
    folder = trained.path.parent
    claim((folder / NAME, CALIBRATION), (folder / FIGURE, DRAWN), inputs=[head], force=force,
          advice="replace it with --force")  # fmt: skip
    opened = None if classifier is None else open_classifier(classifier, trained)
    whole = actstore.open(find_store(store))
    rows = whole[train_split]
    trained.require_store(rows)
    say_means_are_computed(rows)
    weights = head_weights(head, trained.categories.base, rows)
    with progress("calibrate", tasks, "tasks") as bar:
        fits = fit(
            trained.phi, rows, trained.categories, counts, weights, tasks, seed, bar.update,
            held_out_of(whole, train_split, held_out),
        )  # fmt: skip
    save_calibrations(folder, fits)
    draw(folder, fits)
    if classifier is not None and opened is not None:
        set_fitted(classifier, opened, fits)
    emit([one.to_json() for one in fits], as_json, lambda: describe(folder, fits))


def baselines(
    names: str, store: Place, train_split: str, split_file: Path | None, head: Path | None, runs: Path,
    shots: list[int], held_out: str | None, tasks: int, seed: int, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Constants of baselines, kept in the folder of their trainings."""
    import actstore
    from baselines.registry import Setting
    from cli.filekinds import CALIBRATION
    from cli.outputs import claim
    from predictor.protocol.constant import FILE, save_constants
    from predictor.protocol.head import head_for, read_head

    claim((runs / FILE, CALIBRATION), inputs=[head, split_file], force=force, advice="replace it with --force")
    opened = actstore.open(store)
    rows = opened[train_split]
    categories = choose_categories(split_file, rows.classes)
    say_means_are_computed(rows)
    given = None if head is None else head_for(read_head(head), categories.base, rows.dim)
    setting = Setting(rows, categories, given, runs)
    constants = fit_baselines(names, setting, shots, tasks, seed, held_out_of(opened, train_split, held_out))
    if not constants:
        raise InvalidInputError(f"none of {names} has base scores that do not depend on the support; nothing to fit")
    runs.mkdir(parents=True, exist_ok=True)
    path = save_constants(runs, constants)
    emit([asdict(one) for one in constants], as_json, lambda: describe_constants(path, constants))


def own_classifier(
    head: Path | None, store: Place, train_split: str, split_file: Path | None, classifier: Path | None,
    shots: list[int], held_out: str | None, tasks: int, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Of the network's own classifier: printed, and set in a classifier that has it as its base."""
    import actstore
    from predictor.classifier.classifier_file import load_classifier

    opened = actstore.open(store)
    rows = opened[train_split]
    categories = choose_categories(split_file, rows.classes)
    own = read_own(head, categories, rows)
    made = None if classifier is None else load_classifier(classifier)
    if made is not None and (made.base != categories.base or not made.base_parameters.equal(own.weight)):
        raise InvalidInputError(f"{classifier} has another base than the rows of {head or store}; calibrate that one")
    say_means_are_computed(rows)
    fits = fit_own(own, opened, rows, categories, shots, seed, tasks, held_out)
    if classifier is not None and made is not None:
        set_fitted(classifier, made, fits)
    emit([one.to_json() for one in fits], as_json, lambda: describe(classifier or head or store, fits))


def head_weights(head: Path | None, base: tuple[str, ...], rows: Split) -> Tensor | None:
    from predictor.protocol.head import head_for, read_head

    return None if head is None else head_for(read_head(head), base, rows.dim).weight


def set_by_hand(path: Path, novel_bias: float, aggregate: str | None, as_json: bool) -> None:
    from predictor.classifier.classifier_file import load_classifier, save_classifier
    from predictor.classifier.photo_start import choose_bias

    opened = load_classifier(path)
    choose_bias(opened, novel_bias, "mean" if aggregate == "mean" else "max" if aggregate == "max" else None)
    save_classifier(path, opened)
    result = {"classifier": str(path), "novel_bias": opened.novel_bias, "aggregate": opened.aggregate}
    emit(result, as_json, lambda: f"{path}: novel bias {opened.novel_bias:g}, aggregate {opened.aggregate}")


def open_classifier(path: Path, trained: TrainedPhi) -> Classifier:
    """The classifier to set, which must have the phi that is calibrated: scores of another differ in their scale."""
    from actstore.errors import InvalidInputError
    from predictor.classifier.classifier_file import load_classifier

    opened = load_classifier(path)
    ours, theirs = trained.phi.state_dict(), opened.phi.state_dict()
    if ours.keys() != theirs.keys() or any(not ours[name].equal(theirs[name]) for name in ours):
        raise InvalidInputError(f"{path} was made with another phi than {trained.path}; calibrate that one")
    return opened


def set_fitted(path: Path, opened: Classifier, fits: list[Calibration]) -> None:
    from predictor.classifier.classifier_file import save_classifier
    from predictor.classifier.photo_start import choose_bias
    from predictor.phi.calibration import choose_for

    chosen = choose_for(fits, opened.typical_shots())
    choose_bias(opened, chosen.novel_bias, chosen.aggregate)
    save_classifier(path, opened)


def draw(folder: Path, fits: list[Calibration]) -> None:
    from predictor.figures.lines import draw_trade_off
    from predictor.phi.calibration import FIGURE

    curves = {f"{shots_text(fit.shots)}, {fit.aggregate}": (fit.curve["novel"], fit.curve["base"]) for fit in fits}
    fit, points = fits[0], []
    for name, bias in (("no constant", 0.0), ("calibrated", fit.novel_bias)):
        place = min(range(len(fit.curve["bias"])), key=lambda i: abs(fit.curve["bias"][i] - bias))
        points.append((f"{name}, {shots_text(fit.shots)}", fit.curve["novel"][place], fit.curve["base"][place]))
    draw_trade_off(folder / FIGURE, curves, points)


def shots_text(shots: int) -> str:
    return "1 shot" if shots == 1 else f"{shots} shots"


def describe(folder: Path | Place, fits: list[Calibration]) -> str:
    rows = [
        [fit.shots, fit.aggregate, f"{fit.novel_bias:+.3f}", f"{fit.uncalibrated:.1f}", f"{fit.harmonic_mean:.1f}"]
        for fit in fits
    ]
    head = table(["shots", "aggregate", "novel bias", "harmonic mean without", "with"], rows)
    return f"{head}\nfitted on {fits[0].fitted_on} (their figures, not those of novel categories); {folder}"

"""`ppa adapt`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.group import emit, example, json_option
from cli.options import (
    PERCENT,
    STORE,
    cache_options,
    device_option,
    filter_options,
    on_error_option,
    wait_without_spinning,
)
from cli.ppa.classifier_option import DEFAULT, set_unknown_at, unknown_option
from cli.ppa.recognition import note
from cli.ppa.starting import Beginning, Start, begin, start_options

if TYPE_CHECKING:
    from torch import Tensor

    from actstore.storage.place import Place


@click.command(
    epilog=example(
        "ppa adapt --backbone efficientnet-lite0 --support photos/",
        "ppa adapt --backbone efficientnet-lite0 --keep-known --support photos/",
        "ppa adapt --phi runs/phi2 --store imagenet.zarr --support new-animals/",
        "ppa adapt --classifier classifier.safetensors --support more-animals/",
        "ppa adapt --phi runs/phi2 --support-store few.zarr --class okapi --class quokka",
    )
)
@start_options
@click.option("--support", type=click.Path(path_type=Path, file_okay=False), help="DIR/CATEGORY/*.jpg, 1 to n of each.")
@click.option("--support-store", type=STORE, help="Take labelled rows of a store instead.")
@click.option("--support-split", help="Of --support-store.  [default: the only one, or train]")
@filter_options
@click.option("--extend", is_flag=True, help="Add examples to categories that exist.")
@click.option(
    "--aggregate",
    type=click.Choice(["max", "mean"]),
    help="How a category's examples are combined.  [default: as calibrated, else max]",
)
@click.option("--novel-bias", type=float, help="On the novel scores.  [default: as calibrated, else 0]")
@click.option(
    "--max-base-loss",
    type=PERCENT,
    metavar="PERCENT",
    help="The highest --novel-bias with which the base loses at most so many points of top-1, such as 2%.",
)
@unknown_option
@device_option(help_="Of the backbone: auto, cpu, cuda or mps.")
@on_error_option()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="[default: classifier.safetensors, or the file of --classifier]",
)
@click.option("--force", is_flag=True, help="Replace the classifier at OUT, with all that it has learnt.")
@cache_options
@json_option
def adapt(
    support: Path | None, support_store: Place | None, support_split: str | None, classes: tuple[str, ...],
    path_glob: str | None, rows: str | None, extend: bool, aggregate: str | None, novel_bias: float | None,
    max_base_loss: float | None, unknown_at: float | None, device: str, on_error: str, out: Path | None, force: bool,
    as_json: bool, **starting: Any,
) -> None:  # fmt: skip
    """Learn new categories from a few examples each, with no training, and write a classifier.

    --backbone: a classifier of these categories alone, or beside those that the network knows (--keep-known). --phi:
    beside the base categories of a store. Categories may have different numbers of examples. The classifier file holds
    everything `ppa predict` needs but the backbone's weights.
    """
    wait_without_spinning()
    from cli.ppa.support import support_from_images, support_from_rows
    from predictor.classifier.classifier_file import save_classifier

    start = Start(**starting)
    if (support is None) == (support_store is None):
        raise click.UsageError("examples come from --support DIR, or from --support-store STORE: give one of the two")
    if max_base_loss is not None and novel_bias is not None:
        raise click.UsageError("--max-base-loss chooses the novel bias: leave --novel-bias out")
    target = choose_output(out, start, force)
    beginning = begin(start)
    if max_base_loss is not None and beginning.base_rows is None:
        raise click.UsageError("--max-base-loss needs rows of the base categories: start from --phi or --base head")
    learner = beginning.classifier
    network = learner.about.get("network", {})
    began = time.perf_counter()
    if support is not None:
        examples = support_from_images(network, start.weights, support, device, on_error, beginning.backbone)
    else:
        assert support_store is not None
        examples = support_from_rows(network, support_store, support_split, classes, path_glob, rows)
    read = time.perf_counter()
    learn(beginning, examples, extend, aggregate, novel_bias)
    took = time.perf_counter() - read
    said = keep_base(beginning, max_base_loss) if max_base_loss is not None else {}
    set_unknown_at(learner, unknown_at)
    if len(learner.categories) == 1:
        note(
            f"{learner.categories[0]!r} is the only category: an image is that or unknown; teach others to tell it from"
        )
    save_classifier(target, learner)
    count = sum(len(one) for one in examples.values())
    result = {
        "classifier": str(target), "categories": len(learner.categories), "learnt": list(examples), "examples": count,
        "aggregate": learner.aggregate, "novel_bias": learner.novel_bias,
        "unknown_at": learner.threshold, **said, "support_seconds": read - began, "adapt_milliseconds": 1e3 * took,
    }  # fmt: skip
    emit(result, as_json, lambda: (
        f"{target}: learnt {len(examples):,} categories from {count:,} examples in {1e3 * took:.1f} ms "
        f"(reading them took {read - began:.2f} s); {len(learner.categories):,} categories, "
        f"{learner.aggregate} of the examples, novel bias {learner.novel_bias:g}"
        + (f", unknown below a familiarity of {learner.threshold:.3f}" if learner.threshold is not None else "")
        + describe_budget(said)
    ))  # fmt: skip


def choose_output(out: Path | None, start: Start, force: bool) -> Path:
    """Where the classifier goes: --classifier alone names what is read and changed in place."""
    from cli.filekinds import CLASSIFIER
    from cli.outputs import claim

    given = start.classifier
    if given is not None and (out is None or os.path.realpath(out) == os.path.realpath(given)):
        return given
    target = out or DEFAULT
    add = "" if given is not None else f"add to it with --classifier {target} in place of {start.way}, "
    advice = f"{add}choose another --out, or replace it with --force"
    claim((target, CLASSIFIER), inputs=[start.phi, given, start.weights, start.head], force=force, advice=advice)
    return target


def learn(
    beginning: Beginning, examples: dict[str, Tensor], extend: bool, aggregate: str | None, novel_bias: float | None
) -> None:
    """Add the categories; bias and aggregate by hand, else as it was calibrated, else as they are."""
    from predictor.classifier.photo_start import bias_beside_known, choose_bias
    from predictor.phi.calibration import choose_for

    learner = beginning.classifier
    learner.adapt_all(examples, extend)
    fits = beginning.calibrations(learner.typical_shots()) if novel_bias is None or aggregate is None else []
    fit = choose_for(fits, learner.typical_shots()) if fits else None
    chosen = aggregate or (fit.aggregate if fit else learner.aggregate)
    learner.calibrate(fit.novel_bias if fit else learner.novel_bias, "mean" if chosen == "mean" else "max")
    if novel_bias is not None:
        choose_bias(learner, novel_bias)
    elif beginning.beside_known:
        learner.calibrate(bias_beside_known(learner))
    _ = learner.rows  # predicted here, so that the time says what learning costs


def keep_base(beginning: Beginning, loss: float) -> dict[str, Any]:
    """Set the constant within the budget; returns what it costs beside the one that was there."""
    from predictor.classifier.base_rows import fit_budget, measure_base
    from predictor.classifier.photo_start import choose_bias

    learner = beginning.classifier
    assert beginning.base_rows is not None
    rows = beginning.base_rows()
    before, kept = measure_base(learner, rows), fit_budget(learner, rows, loss)
    choose_bias(learner, kept.novel_bias)
    return {"base_top1_alone": kept.alone, "base_top1": kept.beside, "base_rows": len(rows.targets),
            "without_budget": {"novel_bias": before.novel_bias, "base_top1": before.beside}}  # fmt: skip


def describe_budget(said: dict[str, Any]) -> str:
    if not said:
        return ""
    before = said["without_budget"]
    return (
        f"\nthe base has {said['base_top1']:.2f}% top-1 beside them, {said['base_top1_alone']:.2f}% alone "
        f"({said['base_rows']:,} rows); the constant for the best harmonic mean, {before['novel_bias']:g}, would leave "
        f"it {before['base_top1']:.2f}%"
    )

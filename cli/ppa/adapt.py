"""`ppa adapt`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from cli.filekinds import CLASSIFIER
from cli.group import emit, example, json_option
from cli.options import FILE, FOLDER, PERCENT, device_option, on_error_option, wait_without_spinning
from cli.outputs import claim
from cli.ppa.options import CLASSIFIER_FILE, unknown_option
from cli.ppa.recognition import set_unknown_at
from cli.ppa.start_options import Start, start_options
from cli.row_options import filter_options
from cli.stores import STORE, Place, cache_options
from predictor.progress import note

LOOK_ALIKES = (
    "`unknown` is for photos of something else; what looks like a category, such as another bird among birds, is "
    "mostly taken for it: teach such look-alikes as categories of their own"
)


@click.command(
    epilog=example(
        "ppa adapt --support photos/",
        "ppa adapt --backbone efficientnet-lite0 --keep-known --support photos/",
        "ppa adapt --phi runs/phi2 --store imagenet.zarr --support new-animals/",
        "ppa adapt --classifier classifier.safetensors --support more-animals/",
        "ppa adapt --phi runs/phi2 --support-store few.zarr --class okapi --class quokka",
    )
)
@start_options
@click.option("--support", type=FOLDER, help="DIR/CATEGORY/*.jpg, 1 to n of each.")
@click.option("--support-store", type=STORE, help="Take labelled rows of a store instead.")
@click.option("--support-split", help="Of --support-store.  [default: the only one, or train]")
@filter_options
@click.option("--extend", is_flag=True, help="Add examples to categories that exist.")
@click.option("--aggregate", type=click.Choice(["max", "mean"]),
              help="How a category's examples are combined.  [default: as calibrated, else max]")  # fmt: skip
@click.option("--novel-bias", type=float, help="On the novel scores.  [default: as calibrated, else 0]")
@click.option("--max-base-loss", type=PERCENT, metavar="PERCENT",
              help="The highest --novel-bias with which the base loses at most so many points of top-1, such as 2%."
              )  # fmt: skip
@unknown_option
@device_option(help_="Of the backbone: auto, cpu, cuda, cuda:1, mps or xpu.")
@on_error_option()
@click.option("--out", type=FILE, help="[default: classifier.safetensors, or the file of --classifier]")
@click.option("--force", is_flag=True, help="Replace the classifier at OUT, with all that it has learnt.")
@cache_options
@json_option
def adapt(
    support: Path | None, support_store: Place | None, support_split: str | None, classes: tuple[str, ...],
    path_glob: str | None, rows: str | None, extend: bool, aggregate: Any, novel_bias: float | None,
    max_base_loss: float | None, unknown_at: float | None, device: str, on_error: str, out: Path | None, force: bool,
    **starting: Any,
) -> None:  # fmt: skip
    """Learn new categories from a few examples each, with no training, and write a classifier.

    --backbone: a classifier of these categories alone, or beside those that the network knows (--keep-known). --phi:
    beside the base categories of a store. Categories may have different numbers of examples. The classifier file holds
    everything `ppa predict` needs but the backbone's weights.
    """
    start = Start(**starting)
    if (support is None) == (support_store is None):
        raise click.UsageError("examples come from --support DIR, or from --support-store STORE: give one of the two")
    if max_base_loss is not None and novel_bias is not None:
        raise click.UsageError("--max-base-loss chooses the novel bias: leave --novel-bias out")
    target = choose_output(out, start, force)
    wait_without_spinning()
    from cli.ppa.starting import begin, examples_of_images, keep_base, learn
    from cli.ppa.support import support_from_rows
    from predictor.classifier.classifier_file import save_classifier

    beginning = begin(start)
    if max_base_loss is not None and beginning.base_rows is None:
        raise click.UsageError("--max-base-loss needs rows of the base categories: start from --phi or --base head")
    learner = beginning.classifier
    began = time.perf_counter()
    if support is not None:
        examples = examples_of_images(beginning, start.weights, support, device, on_error)
    else:
        assert support_store is not None
        network = learner.about.get("network", {})
        examples = support_from_rows(network, support_store, support_split, classes, path_glob, rows)
    read = time.perf_counter()
    learn(beginning, examples, extend, aggregate, novel_bias)
    took = 1e3 * (time.perf_counter() - read)
    said = keep_base(beginning, max_base_loss) if max_base_loss is not None else {}
    set_unknown_at(learner, unknown_at)
    names, count = learner.categories, sum(map(len, examples.values()))
    if len(names) == 1:
        note(f"{names[0]!r} is the only category: an image is that or unknown; teach others to tell it from")
    save_classifier(target, learner)
    result = {
        "classifier": str(target), "categories": len(names), "learnt": list(examples), "examples": count,
        "aggregate": learner.aggregate, "novel_bias": learner.novel_bias,
        "unknown_at": learner.threshold, **said, "support_seconds": read - began, "adapt_milliseconds": took,
    }  # fmt: skip
    text = (
        f"{target}: learnt {len(examples):,} categories from {count:,} examples in {took:.1f} ms "
        f"(reading them took {read - began:.2f} s); {len(names):,} categories, "
        f"{learner.aggregate} of the examples, novel bias {learner.novel_bias:g}"
    )
    if learner.threshold is not None:
        text += f", unknown below a familiarity of {learner.threshold:.3f}"
        note(LOOK_ALIKES)
    emit(result, text + describe_budget(said))


def choose_output(out: Path | None, start: Start, force: bool) -> Path:
    """Where the classifier goes: --classifier alone names what is read and changed in place."""
    read = start.classifier
    if read is not None and (out is None or os.path.realpath(out) == os.path.realpath(read)):
        return read
    target = out or CLASSIFIER_FILE
    add = "" if read is not None else f"add to it with --classifier {target} in place of {start.way}, "
    advice = f"{add}choose another --out, or replace it with --force"
    claim((target, CLASSIFIER), inputs=[start.phi, read, start.weights, start.head], force=force, advice=advice)
    return target


def describe_budget(said: dict[str, Any]) -> str:
    if not said:
        return ""
    before = said["without_budget"]
    return (
        f"\nthe base has {said['base_top1']:.2f}% top-1 beside them, {said['base_top1_alone']:.2f}% alone "
        f"({said['base_rows']:,} rows); the constant for the best harmonic mean, {before['novel_bias']:g}, would leave "
        f"it {before['base_top1']:.2f}%"
    )

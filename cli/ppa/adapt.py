"""`ppa adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from actstore import InvalidInputError
from cli.group import emit, example, json_option
from cli.options import FILE, FOLDER, device_option, on_error_option, wait_without_spinning
from cli.ppa.options import unknown_option
from cli.ppa.start_options import StartOptions, say_all, start_options
from cli.row_options import filter_options
from cli.stores import STORE, Place, cache_options


def _percent(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """2% or 2."""
    try:
        percent = None if value is None else float(value.strip().removesuffix("%"))
    except ValueError:
        percent = -1.0
    if percent is not None and not 0 <= percent <= 100:
        raise click.BadParameter(f"expected a share such as 2%, from 0% to 100%, got {value!r}")
    return percent


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
@click.option("--max-base-loss", callback=_percent, metavar="PERCENT",
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
    max_base_loss: float | None, unknown_at: float | None, device: str, on_error: Any, out: Path | None, force: bool,
    **starting: Any,
) -> None:  # fmt: skip
    """Learn new categories from a few examples each, with no training, and write a classifier.

    --backbone: a classifier of these categories alone, or beside those that the network knows (--keep-known). --phi:
    beside the base categories of a store. Categories may have different numbers of examples. The classifier file holds
    everything `ppa predict` needs but the backbone's weights.
    """
    start = StartOptions(**starting)
    if (support is None) == (support_store is None):
        raise click.UsageError("examples come from --support DIR, or from --support-store STORE: give one of the two")
    if max_base_loss is not None and novel_bias is not None:
        raise click.UsageError("--max-base-loss chooses the novel bias: leave --novel-bias out")
    if support is not None and not (support.is_dir() and any(entry.is_dir() for entry in support.iterdir())):
        raise InvalidInputError(f"no folder of a category in {support}; expected {support}/CATEGORY/*.jpg")
    target = start.choose_output(out, force)
    wait_without_spinning()
    learner = start.make_classifier()
    if max_base_loss is not None and start.store is None and not learner.has_base_rows:
        raise click.UsageError("--max-base-loss needs rows of the base categories: start from --phi or --base head")
    if novel_bias is not None and aggregate is not None:
        learner.calibrate(novel_bias, aggregate)  # nothing is left to be fitted
    if support_store is not None:
        done = learner.adapt_store(support_store, split=support_split, classes=classes, path_glob=path_glob, rows=rows,
                                   extend=extend, aggregate=aggregate)  # fmt: skip
    else:
        assert support is not None
        done = learner.adapt_folder(support, extend=extend, aggregate=aggregate, on_error=on_error,
                                    weights=start.weights, device=device, progress=True)  # fmt: skip
    say_all(done.warnings)
    if novel_bias is not None:
        learner.calibrate(novel_bias)
    loss = None if max_base_loss is None else learner.limit_base_loss(max_base_loss, start.store, start.train)
    if unknown_at is not None:
        learner.set_unknown_at(unknown_at)
    learner.save(target)
    result = {
        "classifier": str(target), "categories": len(learner.categories), "learnt": list(done.learnt),
        "examples": done.examples, "aggregate": learner.aggregate, "novel_bias": learner.novel_bias,
        "unknown_at": learner.threshold, **({} if loss is None else loss.to_json()),
        "support_seconds": done.read_seconds, "adapt_milliseconds": done.milliseconds,
    }  # fmt: skip
    text = f"{target}: {done.summary}; {len(learner.categories):,} categories, {learner.aggregate} of the examples, "
    text += f"novel bias {learner.novel_bias:g}"
    if learner.threshold is not None:
        text += f", unknown below a familiarity of {learner.threshold:.3f}"
    emit(result, text if loss is None else f"{text}\n{loss.summary}")

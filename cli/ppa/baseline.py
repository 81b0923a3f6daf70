"""`ppa baseline`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cli.group import emit, example, json_option
from cli.options import FILE, FOLDER, combine, device_option
from cli.ppa.options import run_options, split_file_option
from cli.ppa.recognition import choose_categories, claim_run
from cli.stores import find_store, store_option

COMMON = {"name", "out", "split_file", "device", "seed", "checkpoint_seconds", "restart"}
# what some baselines take; `--help` says which
training_options = combine(
    store_option(),
    click.option("--split", "train_split", help="Of the store: D_large.  [default: train]"),
    click.option("--steps", type=click.IntRange(1)),
    click.option("--epochs", type=click.IntRange(1), help="At most."),
    click.option("--batch-size", type=click.IntRange(2), help="Of a step."),
    click.option("--lr", "learning_rate", type=click.FloatRange(0, min_open=True)),
    click.option("--images", help="A folder, tar or list of images, or glyphs:CLASSESxTRAINxVAL."),
    click.option("--backbone", help="resnet50, resnet18, simple, wrn28-10, resnet10-narrow, resnet8 or small.  "
        "[default: as --weights says]"),
    click.option("--weights", type=FILE, help="Of the backbone, where it brings none."),
    click.option("--head", type=FILE, help="finetune-images: classifier of the base categories, such as "
                 "runs/head/model.safetensors.  [default: the network's own]"),
    click.option("--workers", type=click.IntRange(0), help="Processes that decode."),
    click.option("--flip/--no-flip", default=None, help="Mirror half of the images."),
    click.option("--extract/--no-extract", default=None, help="Then write OUT/store.zarr, which `ppa eval` reads."),
    click.option("--shots", type=click.IntRange(1), help="Examples of each novel category."),
    click.option("--draw", type=click.IntRange(0), help="Number of the support draw, as in `ppa eval`."),
    click.option("--way", type=click.IntRange(2), help="Categories of a training task."),
    click.option("--queries", type=click.IntRange(1), help="Of each category in a training task."),
    click.option("--tasks", type=click.IntRange(1), help="Of a step."),
    click.option("--seconds", type=click.FloatRange(0), help="Stop after so long, whatever the steps."),
    click.option("--image-size", type=click.IntRange(8), help="Pixels.  [default: 80, or that of smaller images]"),
    click.option("--width", type=click.IntRange(1), help="Channels of the network of four layers."),
    click.option("--full-context/--no-full-context", default=None,
                 help="matching: embeddings see the support, as in the paper.  [default]"),
    click.option("--order", type=click.Choice(["first", "second"]), help="maml: of the meta-gradient."),
    click.option("--inner-steps", type=click.IntRange(1), help="maml, meta-lstm: updates in a task."),
    click.option("--inner-rate", type=click.FloatRange(0, min_open=True), help="maml: learning rate in a task."),
    click.option("--first-rate", type=click.FloatRange(0, 1, True, True), help="meta-lstm: input gate untrained."),
)  # fmt: skip


@click.command(
    epilog=example(
        "ppa baseline triplet --store imagenet.zarr --split-file split.json",
        "ppa baseline oracle --store imagenet.zarr",
        "ppa baseline triplet-images --images imagenet/ --backbone resnet50 --weights r50/best.safetensors",
        "ppa baseline finetune-images --images birds/ --backbone efficientnet-lite0 --head runs/head/model.safetensors",
        "ppa baseline maml --images mini.tar --split-file split.json --shots 1 --order first --out runs/maml",
        "ppa baseline prototypical --images glyphs:1000x40x10 --seconds 120",
    )
)
@click.argument("name", metavar="NAME")
@training_options
@split_file_option
@click.option("--out", type=FOLDER, help="[default: runs/NAME]")
@device_option()
@run_options
@json_option
@click.pass_context
def baseline(ctx: click.Context, /, name: str, out: Path | None, **given: Any) -> None:
    """Train a baseline that needs training; the others need none, `ppa eval` knows them all.

    \b
    NAME is one of
      triplet          an embedding of stored activations, for nearest neighbours
      attention        a generator of rows from examples and those of the base categories
      head             the classifier of the base categories, where no trained one is at hand
      oracle           a linear classifier of all categories, from all of their rows
      triplet-images   the backbone itself, by triplets; then a store is extracted with it
      finetune-images  the backbone and its classifier, on D_large and one draw of the few examples
      matching, prototypical, maml, meta-lstm   learners of N-way K-shot tasks, which `ppa episodes` measures

    The first four read --store, the next two --images and --backbone (with --weights if need be), the last --images.
    Interrupted, the same command goes on and ends with the same weights, bit for bit. OUT holds model.safetensors,
    model.json and log.csv.
    """
    import baselines

    require_name(name, baselines.OPTIONS)
    for parameter in ctx.command.params:
        is_typed = ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if is_typed and parameter.expose_value and parameter.name not in COMMON | baselines.OPTIONS[name]:
            raise click.UsageError(f"{parameter.opts[0]} does not apply to the baseline {name}")
    folder = out or Path("runs") / name
    split_file = given.pop("split_file")
    claim_run(folder, split_file, given["weights"], given["head"])
    if "store" in baselines.OPTIONS[name]:
        given["store"] = find_store(given["store"])
    trained, store = baselines.train(
        name, folder, split=lambda names: choose_categories(split_file, names), progress=True, **given
    )
    result = {"baseline": name, "folder": str(folder), "steps": trained.steps, "seconds": trained.seconds,
              **trained.figures, **store}  # fmt: skip
    figures = [f"{key.replace('_', ' ')} {value:.4g}" for key, value in trained.figures.items()]
    told = "; ".join([", ".join(figures), *(f"{key} {value}" for key, value in store.items())])
    emit(result, f"{folder}: {name} after {trained.steps:,} steps in {trained.seconds:.0f} s; {told}")


def require_name(name: str, trained: Mapping[str, Any]) -> None:
    """One of those that are trained; the others are told from a slip of the pen."""
    import baselines
    from actstore import InvalidInputError

    if name not in trained and name in baselines.NAMES:
        raise click.UsageError(f"{name} needs no training: `ppa eval --methods {name}` measures it")
    try:
        baselines.require_names([name.replace(":", " ")], trained, ())
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from error

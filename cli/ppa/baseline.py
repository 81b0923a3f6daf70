"""`ppa baseline`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from cli.group import emit, example, json_option
from cli.options import device_option, store_option
from cli.ppa.baseline_activations import ACTIVATION_TRAINERS
from cli.ppa.baseline_images import IMAGE_TRAINERS
from cli.ppa.baseline_request import Request, Trainer
from cli.ppa.baseline_tasks import TASK_TRAINERS, task_options
from cli.ppa.recognition import claim_run, run_options, split_file_option
from cli.progress import TrainingBars

if TYPE_CHECKING:
    from predictor.training import Trained

Command = TypeVar("Command", bound=Callable[..., Any])
# name -> how it is trained, and which of the options below it takes
TRAINERS: dict[str, Trainer] = {**ACTIVATION_TRAINERS, **IMAGE_TRAINERS, **TASK_TRAINERS}
COMMON = {"name", "out", "split_file", "device", "seed", "checkpoint_seconds", "restart", "as_json"}


def training_options(command: Command) -> Command:
    """What some baselines take; `--help` says which."""
    for option in (
        click.option("--draw", type=click.IntRange(0), help="Number of the support draw, as in `ppa eval`."),
        click.option("--shots", type=click.IntRange(1), help="Examples of each novel category."),
        click.option("--extract/--no-extract", default=None, help="Then write OUT/store.zarr, which `ppa eval` reads."),
        click.option("--flip/--no-flip", default=None, help="Mirror half of the images."),
        click.option("--workers", type=click.IntRange(0), help="Processes that decode."),
        click.option("--weights", type=click.Path(path_type=Path, dir_okay=False), help="Of the trained backbone."),
        click.option("--backbone", help="resnet50, resnet18, simple, wrn28-10 or small."),
        click.option("--images", help="A folder, tar or list of images, or glyphs:CLASSESxTRAINxVAL."),
        click.option("--lr", "learning_rate", type=click.FloatRange(0, min_open=True)),
        click.option("--batch-size", type=click.IntRange(2), help="Of a step."),
        click.option("--epochs", type=click.IntRange(1), help="At most."),
        click.option("--steps", type=click.IntRange(1)),
        click.option("--split", "train_split", help="Of the store: D_large.  [default: train]"),
        store_option(),
    ):
        command = option(command)
    return command


@click.command(
    epilog=example(
        "ppa baseline triplet --store imagenet.zarr --split-file split.json",
        "ppa baseline oracle --store imagenet.zarr",
        "ppa baseline triplet-images --images imagenet/ --backbone resnet50 --weights r50/best.safetensors",
        "ppa baseline finetune-images --images photos/ --backbone small --weights out/best.safetensors --shots 1",
        "ppa baseline maml --images mini.tar --split-file split.json --shots 1 --order first --out runs/maml",
        "ppa baseline prototypical --images glyphs:1000x40x10 --seconds 120",
    )
)
@click.argument("name", type=click.Choice(list(TRAINERS)), metavar="NAME")
@training_options
@task_options
@split_file_option
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="[default: runs/NAME]")
@device_option()
@run_options
@json_option
@click.pass_context
def baseline(ctx: click.Context, /, name: str, out: Path | None, as_json: bool, **given: Any) -> None:
    """Train a baseline that needs training; the others need none, `ppa eval` knows them all.

    \b
    NAME is one of
      triplet          an embedding of stored activations, for nearest neighbours
      head             the classifier of the base categories, where no trained one is at hand
      oracle           a linear classifier of all categories, from all of their rows
      triplet-images   the backbone itself, by triplets; then a store is extracted with it
      finetune-images  the backbone and its classifier, on D_large and one draw of the few examples
      matching, prototypical, maml, meta-lstm   learners of N-way K-shot tasks, which `ppa episodes` measures

    The first three read --store, the next two --images, --backbone and --weights, the last --images.
    Interrupted, the same command goes on and ends with the same weights, bit for bit. OUT holds model.safetensors,
    model.json and log.csv.
    """
    trainer = TRAINERS[name]
    for option, source in ((key, ctx.get_parameter_source(key)) for key in given):
        if source is ParameterSource.COMMANDLINE and option not in COMMON | trainer.options:
            option_name = next(parameter.opts[0] for parameter in ctx.command.params if parameter.name == option)
            raise click.UsageError(f"{option_name} does not apply to the baseline {name}")
    folder = out or Path("runs") / name
    claim_run(folder, given["split_file"], given["weights"])
    with TrainingBars(name) as bars:
        request = Request(name, folder, given, bars)
        trained = trainer.train(request)
    result = {"baseline": name, "folder": str(folder), "steps": trained.steps, "seconds": trained.seconds,
              **trained.figures, **request.more}  # fmt: skip
    emit(result, as_json, lambda: summary(name, folder, trained, request.more))


def summary(name: str, folder: Path, trained: Trained, more: dict[str, Any]) -> str:
    figures = ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in trained.figures.items())
    text = f"{folder}: {name} after {trained.steps:,} steps in {trained.seconds:.0f} s; {figures}"
    return text + "".join(f"; {key} {value}" for key, value in more.items())

"""Trainings of `ppa baseline` that learn to learn, from tasks of images of the base categories."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.ppa.baseline_request import Request, Trainer

if TYPE_CHECKING:
    from predictor.training import Trained

Command = TypeVar("Command", bound=Callable[..., Any])
LARGEST = 80  # pixels: the paper's; smaller images stay as small as they are
SETTINGS = ("way", "shots", "queries", "tasks", "steps", "seconds", "learning_rate", "width")
OWN = {
    "matching": ("full_context",),
    "prototypical": (),
    "maml": ("order", "inner_steps", "inner_rate"),
    "meta-lstm": ("inner_steps", "first_rate"),
}  # options of one learner alone


def task_options(command: Command) -> Command:
    """What the learners of tasks take."""
    for option in (
        click.option("--first-rate", type=click.FloatRange(0, 1, True, True), help="meta-lstm: input gate untrained."),
        click.option("--inner-rate", type=click.FloatRange(0, min_open=True), help="maml: learning rate in a task."),
        click.option("--inner-steps", type=click.IntRange(1), help="maml, meta-lstm: updates in a task."),
        click.option("--order", type=click.Choice(["first", "second"]), help="maml: of the meta-gradient."),
        click.option(
            "--full-context/--no-full-context",
            default=None,
            help="matching: embeddings see the support, as in the paper.  [default]",
        ),
        click.option("--width", type=click.IntRange(1), help="Channels of the network of four layers."),
        click.option("--image-size", type=click.IntRange(8), help="Pixels.  [default: 80, or that of smaller images]"),
        click.option("--seconds", type=click.FloatRange(0), help="Stop after so long, whatever the steps."),
        click.option("--tasks", type=click.IntRange(1), help="Of a step."),
        click.option("--queries", type=click.IntRange(1), help="Of each category in a training task."),
        click.option("--way", type=click.IntRange(2), help="Categories of a training task."),
    ):
        command = option(command)
    return command


def _train(request: Request) -> Trained:
    from actstore.images.opening import open_images
    from baselines.image_tasks import decode_classes
    from baselines.meta_training import choose_meta_config, train_learner

    sets = open_images(request.require("images"))
    base = request.categories(sorted({name for images in sets.values() for name in images.classes})).base
    size = request.given["image_size"] or min(LARGEST, *next(iter(sets.values())).items[0].load().size)
    changed = request.settings(*SETTINGS, *OWN[request.name])
    config = choose_meta_config(request.name, image_size=size, seed=request.given["seed"], **changed)
    examples = decode_classes(sets, base, size, request.given["workers"] or 0, request.bars.decoded)
    return train_learner(
        config,
        examples,
        request.given["images"],
        request.folder,
        request.device,
        request.run_options,
        request.bars.report,
    )


TASK_TRAINERS = {
    name: Trainer(_train, frozenset({*SETTINGS, *own, "images", "image_size", "workers"})) for name, own in OWN.items()
}

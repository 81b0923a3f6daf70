"""Training of the learners of image tasks on tasks of the base categories, and reading them back.

The tasks of a step are a function of (seed, step): a run that was killed ends as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from actstore.compute.device import most_precise, parse_device, steps_per_reading
from actstore.errors import InvalidInputError
from actstore.images.opening import open_images
from actstore.storage.tensor_file import below
from baselines.learners import LEARNERS, AdaptingLearner, MetaLearner, as_images, decode_classes, draw_tasks
from predictor.protocol.episodes import POOLED, Examples, TaskSize
from predictor.protocol.method import EpisodeMethod
from predictor.protocol.setting import refuse_trained_on
from predictor.training import Report, RunOptions, Tensors, Trained, Trainee, train
from predictor.training.loop import MODEL, read_model

LEARNER = "learner."  # in names of tensors
STEPS_PER_LINE = 50  # of the log


@dataclass(frozen=True)
class MetaConfig:
    """What decides the outcome of a training, beside the images.

    way, shots, queries: of the training tasks, queries of each category. tasks: of one step. width: channels of the
    network. seconds: stop after so long; 0 for no limit. options: of the learner alone, see its class.
    """

    learner: str
    image_size: int = 80
    width: int = 64
    way: int = 5
    shots: int = 1
    queries: int = 15
    tasks: int = 4
    steps: int = 10_000
    learning_rate: float = 1e-3
    seconds: float = 0.0
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.learner not in LEARNERS:
            raise InvalidInputError(f"no meta-learner {self.learner!r}; known: {', '.join(LEARNERS)}")
        for name, least in (("image_size", 8), ("width", 1), ("tasks", 1), ("steps", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InvalidInputError(f"{name.replace('_', ' ')} must be {least} or more, got {getattr(self, name)}")

    @property
    def task_size(self) -> TaskSize:
        return TaskSize(self.way, self.shots, self.queries)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "options": dict(self.options)}


def choose_meta_config(learner: str, **changes: Any) -> MetaConfig:
    """The learner's usual settings with those changed that are given; unknown names are the learner's options."""
    own = {spec.name for spec in fields(MetaConfig)}
    given = {**USUAL.get(learner, {}), **changes}
    options = {key: value for key, value in given.items() if key not in own}
    return MetaConfig(learner, **{key: value for key, value in given.items() if key in own}, options=options)


# Settings of new trainings that differ from the defaults, of MetaConfig and of the learner (which are those of earlier
# trainings). Both papers of learners that adapt use 32 channels: every weight has a gradient, or a state, of its own.
USUAL: dict[str, dict[str, Any]] = {
    "matching": {"full_context": True},  # as the published row
    "maml": {"width": 32},
    "meta-lstm": {"width": 32, "tasks": 1},
}


def make_learner(config: MetaConfig) -> MetaLearner:
    """Untrained."""
    make: Callable[..., MetaLearner] = LEARNERS[config.learner]
    way = {"way": config.way} if issubclass(LEARNERS[config.learner], AdaptingLearner) else {}
    return make(config.image_size, config.width, config.seed, **way, **config.options)


def train_learner(
    config: MetaConfig,
    examples: Examples,
    source: str,
    folder: Path,
    device: torch.device,
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    report: Report | None = None,
) -> Trained:
    """Train on tasks of these examples, or go on with what is in the folder. source: the images, in words."""
    identity = {
        "method": config.learner,
        "config": config.to_json(),
        "source": {"images": source, "count": len(examples.values), "classes": list(examples.index.names)},
    }
    make = partial(MetaTrainee, config, examples, device)
    return train(folder, identity, make, config.steps, every=STEPS_PER_LINE, options=options, report=report)


class MetaTrainee(Trainee):
    """A learner under training by Adam on the cross-entropy of its scores."""

    prefix = LEARNER

    def __init__(self, config: MetaConfig, examples: Examples, device: torch.device) -> None:
        self._config, self._examples, self._device = config, examples, device
        self.steps_per_reading = steps_per_reading(device)
        self.module = self.learner = make_learner(config).to(device).train()
        self.optimiser = torch.optim.Adam(self.learner.parameters(), config.learning_rate)
        self._began, self._spent = time.monotonic(), 0.0

    def step(self, number: int) -> dict[str, Tensor]:
        config = self._config
        numbers = range(number * config.tasks, (number + 1) * config.tasks)
        support, queries, targets = draw_tasks(self._examples, config.task_size, config.seed, numbers)
        shown, asked = (as_images(pixels, self.learner.transform, self._device) for pixels in (support, queries))
        logits = self.learner.scores(shown, asked).flatten(0, 1)  # (tasks * n, way)
        wanted = targets.flatten().to(self._device)
        loss = functional.cross_entropy(logits, wanted)
        self.descend(loss)
        self.has_converged = 0 < config.seconds <= self._seconds()
        recognised = (logits.detach().argmax(1) == wanted).to(most_precise(self._device))
        return {"loss": loss.detach(), "accuracy": recognised.mean()}

    def state(self) -> Tensors:
        return {**super().state(), "seconds": torch.tensor([self._seconds()], dtype=torch.float64)}

    def restore(self, tensors: Tensors) -> None:
        super().restore(tensors)
        self._began, self._spent = time.monotonic(), float(tensors["seconds"])

    def _seconds(self) -> float:
        return self._spent + time.monotonic() - self._began


def read_learner(folder: Path, device: torch.device) -> tuple[MetaLearner, Trained]:
    """A learner that `ppa baseline` has trained, ready to score tasks."""
    if not (folder / MODEL).exists():
        raise InvalidInputError(f"no finished training at {folder}; run `ppa baseline maml --images …` or the like")
    trained = read_model(folder / MODEL)
    if (found := trained.identity.get("method")) not in LEARNERS:
        raise InvalidInputError(f"{folder} must hold one of {', '.join(LEARNERS)}, got {found}; choose another folder")
    config = MetaConfig(**trained.identity["config"])
    learner = make_learner(config)
    learner.load_state_dict(below(trained.tensors, LEARNER))
    return learner.to(device).eval(), trained


Run = tuple[Examples, list[EpisodeMethod]]


def read_learners(
    folders: Sequence[str | Path],
    images: str | Path,
    novel: Sequence[str] | Callable[[Sequence[str]], Sequence[str]],
    splits: Sequence[str] | None = None,
    device: str = "auto",
) -> list[Run]:
    """Read learners of image tasks that were trained, with the images they are measured on.

    Args:
        folders: the folders of the trainings.
        images: a folder, tar or list of images; see `actstore.build`.
        novel: the categories of tasks, or a function that chooses them among class names.
        splits: names of splits whose images are pooled, by default train, val and test.
        device: "cpu", "cuda", "cuda:1" or "auto".

    Returns:
        A pair of images and learner for each folder, for the argument `runs` of `predictor.run_episodes`.

    Raises:
        InvalidInputError: a learner was trained on one of these categories, or there are no images.
    """
    sets = open_images(str(images))
    names = list(splits) if splits else [name for name in POOLED if name in sets]
    if not names:
        raise InvalidInputError(f"choose splits of {images}: {', '.join(sets) or 'there are none'}")
    pooled = {name: sets[name] for name in names}
    if callable(novel):
        novel = novel(sorted({name for part in pooled.values() for name in part.classes}))
    decoded: dict[int, Examples] = {}
    runs: list[Run] = []
    for folder in map(Path, folders):
        learner, trained = read_learner(folder, parse_device(device))
        refuse_trained_on(folder, trained.identity["source"]["classes"], novel)
        size = learner.transform.crop
        if size not in decoded:
            decoded[size] = decode_classes(pooled, novel, size)
        examples, method = learner.prepared(decoded[size])
        runs.append((examples, [method]))
    return runs

"""Commands of `ppa` that keep what they learn in files: a training in its folder, a classifier in one file."""

from __future__ import annotations

from pathlib import Path

import torch

import actstore
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.protocol.category_split import CategorySplit
from predictor.training.loop import MODEL, Trained, read_model
from predictor.training.phi import TrainConfig, TrainOptions, run_phi_training
from tests.simulation.commands import Command
from tests.simulation.rows import DIM, make_rows
from tests.simulation.states import World

RUN, CLASSIFIER = "run", "classifier.safetensors"
_CONFIG = TrainConfig(phi="phi1", epochs=2, batches=2)
_expected: list[Trained] = []  # the outcome of a training that nobody disturbed; the same, bit for bit, always


def train() -> Command:
    return Command("train", lambda world: _train(world, world.folder / RUN), check=_other_model)


def adapt(name: str) -> Command:
    def run(world: World) -> None:
        learner = Classifier.alone(DIM)
        learner.adapt(name, torch.from_numpy(make_rows(name, 4).values).float())
        save_classifier(world.folder / CLASSIFIER, learner)

    return Command("adapt", run, check=_other_classifier)


def _train(world: World, folder: Path) -> Trained:
    store = actstore.open(world.store)
    categories = CategorySplit(("bee", "cat"), ("dog",))
    return run_phi_training(store["train"], None, categories, _CONFIG, folder, TrainOptions("cpu"))


def _other_model(world: World) -> str | None:
    """What is wrong with the model of a finished training."""
    if not _expected:
        _expected.append(_train(world, world.copied("run")))
    model = read_model(world.folder / RUN / MODEL)
    wanted = _expected[0].tensors
    same = model.tensors.keys() == wanted.keys() and all(
        torch.equal(model.tensors[name], wanted[name]) for name in wanted
    )
    return None if same else "the model is another than that of a training alone"


def _other_classifier(world: World) -> str | None:
    """Of two that write one file, the last one's is there."""
    names = load_classifier(world.folder / CLASSIFIER).categories
    return None if len(names) == 1 else f"it knows {names}"

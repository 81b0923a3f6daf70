"""Meta-learners on the embedded glyphs: they learn, and a run that was interrupted ends as one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actstore.errors import ActstoreError, InvalidInputError
from actstore.images.opening import open_images
from baselines.learners import MetaLearner, decode_classes, draw_tasks
from baselines.meta_training import (
    LEARNERS,
    MetaConfig,
    choose_meta_config,
    make_learner,
    read_learner,
    train_learner,
)
from predictor.protocol.category_split import alphabetical_split
from predictor.protocol.episodes import EpisodeMethod, Examples, TaskSize, run_episodes
from predictor.training import RunOptions

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
SIZE = 16
# what learns fastest at this size
SETTINGS: dict[str, dict[str, Any]] = {
    "matching": {"learning_rate": 5e-3, "steps": 40},
    "prototypical": {"learning_rate": 5e-3, "steps": 40},
    "maml": {"learning_rate": 5e-3, "steps": 40, "order": "first", "inner_steps": 2, "inner_rate": 0.4},
    "meta-lstm": {"learning_rate": 5e-3, "steps": 80, "tasks": 2, "inner_steps": 2, "first_rate": 0.4},
}


@pytest.fixture(scope="module")
def glyphs() -> tuple[Examples, Examples]:
    """Images of 60 base categories, and of 20 novel ones."""
    sets = open_images("glyphs:80x10x0")
    split = alphabetical_split(sets["train"].classes, 0.75)
    return decode_classes(sets, split.base, SIZE), decode_classes(sets, split.novel, SIZE)


def config_of(learner: str, **changes: Any) -> MetaConfig:
    settings = {"image_size": SIZE, "width": 12, "queries": 4, **SETTINGS[learner], **changes}
    return choose_meta_config(learner, **settings)


def novel_accuracy(learner: MetaLearner, novel: Examples, tasks: int = 40) -> float:
    examples, method = learner.prepared(novel)
    (result,) = run_episodes([method], examples, TaskSize(5, 1, 5), tasks)
    return result.accuracy


@pytest.mark.parametrize("name", LEARNERS)
def test_each_learns_to_recognise_new_glyphs(name: str, glyphs: tuple[Examples, Examples], tmp_path: Path) -> None:
    base, novel = glyphs
    config = config_of(name)
    before = novel_accuracy(make_learner(config), novel)
    train_learner(config, base, "glyphs", tmp_path, CPU)
    learner, trained = read_learner(tmp_path, CPU)
    after = novel_accuracy(learner, novel)
    print(f"{name}: {before:.3f} -> {after:.3f} in {trained.seconds:.1f} s")
    assert after > before + 0.1
    assert trained.figures["accuracy"] > 0.3


@pytest.mark.parametrize("name", LEARNERS)
def test_an_interrupted_run_ends_as_one_that_was_not(
    name: str, glyphs: tuple[Examples, Examples], tmp_path: Path
) -> None:
    class Interrupted(Exception):
        pass

    def stop(done: int, total: int, figures: dict[str, float]) -> None:
        if done == 3:
            raise Interrupted

    config = config_of(name, steps=5, width=4, tasks=1)
    whole = train_learner(config, glyphs[0], "glyphs", tmp_path / "whole", CPU)
    often = RunOptions(checkpoint_seconds=0)
    with pytest.raises(Interrupted):
        train_learner(config, glyphs[0], "glyphs", tmp_path / "parts", CPU, often, stop)
    parts = train_learner(config, glyphs[0], "glyphs", tmp_path / "parts", CPU, often)
    assert whole.tensors.keys() == parts.tensors.keys()
    for key, tensor in whole.tensors.items():
        assert torch.equal(tensor, parts.tensors[key]), key
    with pytest.raises(ActstoreError, match="config seed was 0, is 1"):
        train_learner(config_of(name, steps=5, width=4, tasks=1, seed=1), glyphs[0], "glyphs", tmp_path / "parts", CPU)


def test_a_limit_of_seconds_ends_a_run(glyphs: tuple[Examples, Examples], tmp_path: Path) -> None:
    config = config_of("prototypical", steps=100_000, width=2, seconds=0.05)
    assert train_learner(config, glyphs[0], "glyphs", tmp_path, CPU).steps < 100_000


def test_tasks_of_images_are_those_of_the_planner(glyphs: tuple[Examples, Examples]) -> None:
    base, _ = glyphs
    size = TaskSize(5, 2, 3)
    support, queries, targets = draw_tasks(base, size, 7, range(2, 4))
    assert support.shape == (2, 5, 2, SIZE, SIZE, 3)
    assert queries.shape == (2, 15, SIZE, SIZE, 3)
    assert targets[0].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    again, _, _ = draw_tasks(base, size, 7, range(3, 4))
    assert torch.equal(support[1], again[0])


def test_images_are_in_the_order_of_a_store(tmp_path: Path) -> None:
    """Class by class, split after split: a task has the same images as in a store that was built of them."""
    sets = open_images("glyphs:4x3x2")
    names = list(reversed(sets["train"].classes))
    examples = decode_classes(sets, names, 32)
    assert examples.index.counts.tolist() == [5] * 4
    first = next(item for item in sets["train"].items if item.label == names[0])
    held_out = next(item for item in sets["val"].items if item.label == names[0])
    for row, item in ((0, first), (3, held_out)):
        np.testing.assert_array_equal(examples.values[row].numpy(), np.asarray(item.load()))


def test_bad_settings(glyphs: tuple[Examples, Examples], tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no meta-learner 'reptile'; known: matching"):
        MetaConfig("reptile")
    with pytest.raises(InvalidInputError, match="image size must be 8 or more, got 4"):
        MetaConfig("maml", image_size=4)
    with pytest.raises(InvalidInputError, match="no finished training at"):
        read_learner(tmp_path, CPU)
    with pytest.raises(InvalidInputError, match="class 'none' has no images"):
        decode_classes(open_images("glyphs:2x1x0"), ["none"], 16)
    with pytest.raises(InvalidInputError, match="use a smaller image size"):
        decode_classes(open_images("glyphs:20x100x0"), open_images("glyphs:20x100x0")["train"].classes, 600)


def test_learners_are_episode_methods() -> None:
    method: EpisodeMethod = make_learner(config_of("maml"))
    assert method.name == "MAML"

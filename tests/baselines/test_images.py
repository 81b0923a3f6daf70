"""Trainings of a whole backbone: the same examples as a store's draws, all layers trained, exact resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actstore.backbones.loading import load_backbone
from actstore.backbones.weights import read_weights, save_weights
from actstore.errors import InvalidInputError
from actstore.extraction.build import BuildOptions, build
from actstore.images.opening import open_images
from actstore.streams.sampling import draw_support
from baselines.finetune import Draw, FineTuned, support_rows, train_finetuned
from baselines.image_training import WEIGHTS, ImageConfig, ImageRun, trainable
from baselines.triplet import train_triplet_images
from predictor.protocol.category_split import CategorySplit, alphabetical_split
from predictor.training import RunOptions, Trained

pytestmark = pytest.mark.numeric

GLYPHS = "glyphs:6x4x2"
SETS = open_images(GLYPHS)
SPLIT = alphabetical_split(SETS["train"].classes, 0.67)  # four base classes, two novel ones
CONFIG = ImageConfig(steps=4, batch_size=8, learning_rate=0.05, flip=False)
CPU = BuildOptions("cpu", workers=0, layout={"dtype": "f4"})


def test_only_a_single_network_is_trained() -> None:
    with pytest.raises(InvalidInputError, match="not several side by side"):
        trainable(load_backbone("efficientnet-lite0+efficientnet-lite1", random_weights=True))


class Killed(Exception):
    pass


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A network that knows the base classes, though in another order."""
    from actstore.backbones.construction import build_network

    path = tmp_path / "best.safetensors"
    network = build_network("small", len(SPLIT.base))
    save_weights(path, network, "small", SPLIT.base[::-1], network.transform)
    return path


def train(kind: str, weights: Path, folder: Path, **more: Any) -> Trained:
    backbone = load_backbone("small", weights)
    if kind == "triplet":
        return train_triplet_images(SETS, SPLIT, backbone, folder, CONFIG, ImageRun(**more))
    return train_finetuned(SETS, SPLIT, backbone, folder, CONFIG, Draw(2, 1), ImageRun(**more))


@pytest.mark.parametrize("kind", ["triplet", "finetune"])
def test_all_layers_are_trained_and_a_kill_changes_nothing(kind: str, weights: Path, tmp_path: Path) -> None:
    def kill(done: int, total: int, figures: object) -> None:
        if done == 3:
            raise Killed

    whole = train(kind, weights, tmp_path / "whole")
    every = RunOptions(checkpoint_seconds=0)
    with pytest.raises(Killed):
        train(kind, weights, tmp_path / "run", options=every, report=kill)
    resumed = train(kind, weights, tmp_path / "run", options=every)
    before, first, second = (
        read_weights(path).tensors for path in (weights, tmp_path / "whole" / WEIGHTS, tmp_path / "run" / WEIGHTS)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert whole.figures == resumed.figures
    moved = {name for name in before if name.endswith("weight") and not torch.equal(before[name], first[name])}
    assert {"conv1.weight", "layer1.conv1.weight", "layer3.conv2.weight"} <= moved
    assert ("fc.weight" in moved) == (kind == "finetune")


def test_fine_tuning_extends_the_classifier_in_the_order_of_the_split(weights: Path, tmp_path: Path) -> None:
    train("finetune", weights, tmp_path / "run")
    file = read_weights(tmp_path / "run" / WEIGHTS)
    assert file.classes == (*SPLIT.base, *SPLIT.novel)
    assert file.tensors["fc.weight"].shape == (6, 256)
    before = read_weights(weights).tensors["fc.weight"].flip(0)  # its rows are the other way round
    closeness = torch.cosine_similarity(file.tensors["fc.weight"][:4, None], before[None], dim=2)
    assert closeness.argmax(1).tolist() == [0, 1, 2, 3], closeness


def test_the_few_examples_are_those_that_a_store_draws(weights: Path, tmp_path: Path) -> None:
    store = build(SETS, GLYPHS, tmp_path / "x.zarr", load_backbone("small", weights), CPU)
    index = store["train"].class_index
    labels = np.array([index.position(name) for name in SPLIT.novel])
    for draw in (Draw(1, 0), Draw(3, 2, seed=5)):
        expected = draw_support(index, labels, draw.shots, draw.seed, draw.number)
        assert (support_rows(SETS, SPLIT, draw) == expected).all()


def test_a_fine_tuned_network_answers_as_itself_and_for_its_own_draw_only(weights: Path, tmp_path: Path) -> None:
    trained = train("finetune", weights, tmp_path / "run")
    backbone = load_backbone("small", tmp_path / "run" / WEIGHTS)
    images = torch.stack([backbone.transform(item.load()) for item in SETS["val"].items])
    with torch.no_grad():
        logits = backbone.module(images)
    store = build({"val": SETS["val"]}, GLYPHS, tmp_path / "x.zarr", backbone, CPU)
    queries = store["val"].to_torch()
    method, rows = FineTuned(trained), support_rows(SETS, SPLIT, Draw(2, 1))
    torch.testing.assert_close(method.scores(queries, torch.empty(2, 2, 256)), logits, rtol=0, atol=1e-3)
    assert (method.name, method.finetuned, method.draw) == ("Fine-Tuned network (images)", True, Draw(2, 1))
    assert method.only_draw == (2, 1)
    np.testing.assert_array_equal(method.only_rows, rows)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (CategorySplit(SPLIT.base), "names no novel class to fine-tune for"),
        (CategorySplit((*SPLIT.base, "yeti"), SPLIT.novel), "base class 'yeti' of the split is not among"),
        (CategorySplit(SPLIT.novel, SPLIT.base), "the head has no row for base class"),
    ],
)  # fmt: skip
def test_a_split_of_something_else_is_refused(
    weights: Path, tmp_path: Path, split: CategorySplit, expected: str
) -> None:
    with pytest.raises(InvalidInputError, match=expected):
        train_finetuned(SETS, split, load_backbone("small", weights), tmp_path / "run", CONFIG, Draw())


def test_a_network_without_features_is_refused(tmp_path: Path) -> None:
    backbone = load_backbone("small", random_weights=True)
    backbone.module = torch.nn.Sequential(torch.nn.Flatten())
    with pytest.raises(InvalidInputError, match="only networks with `features` and `fc`"):
        train_triplet_images(SETS, SPLIT, backbone, tmp_path / "run", CONFIG)
    with pytest.raises(InvalidInputError, match="batches of 2 or more, got 1 and 1"):
        ImageConfig(steps=1, batch_size=1)


def test_rows_of_a_store_that_was_extracted_anew_are_the_same_images(weights: Path, tmp_path: Path) -> None:
    train("triplet", weights, tmp_path / "run")
    before = build(SETS, GLYPHS, tmp_path / "x.zarr", load_backbone("small", weights), CPU)["train"]
    after = build(SETS, GLYPHS, tmp_path / "y.zarr", load_backbone("small", tmp_path / "run" / WEIGHTS), CPU)["train"]
    assert list(before.ids) == list(after.ids)
    assert not np.allclose(before.take([0]), after.take([0]))

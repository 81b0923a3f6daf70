"""Turns of images as a second task of a training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from actstore.images.opening import open_images
from predictor.protocol.category_split import alphabetical_split
from predictor.training.backbones.batches import IGNORED
from predictor.training.backbones.images import select_images
from predictor.training.backbones.mixup import draw_mixture
from predictor.training.backbones.rotation import TURNS, UPRIGHT, WEIGHT, choose_turns, turn_images
from predictor.training.backbones.trainee import BackboneTrainee
from predictor.training.processes import Processes
from tests.predictor.training.backbones.tiny import TINY, TINY_GLYPHS, stop_after, train, weights_of

TURNED = replace(TINY, rotation=True)


def test_three_of_eight_images_are_turned_each_its_own_way() -> None:
    assert choose_turns(8).tolist() == [0] * UPRIGHT + [1, 2, 3]
    assert choose_turns(3).tolist() == [0, 0, 0]
    assert torch.equal(choose_turns(32), choose_turns(16).repeat(2))


def test_four_quarter_turns_are_none() -> None:
    images = torch.rand(8, 3, 6, 6)
    turns = torch.arange(8) % TURNS
    turned = turn_images(images, turns)
    assert torch.equal(turned[0], images[0])
    assert torch.equal(turned[2], images[2].flip(1, 2))
    assert torch.equal(turn_images(turned, (TURNS - turns) % TURNS), images)


@pytest.mark.parametrize("mixup", [0.0, 0.3])
def test_the_loss_asks_for_turns_too_but_not_of_unreadable_images(
    mixup: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = open_images(TINY_GLYPHS)
    images = select_images(sets, alphabetical_split(sets["train"].classes), 0)
    smooth = TINY.label_smoothing
    trainee = BackboneTrainee(images, replace(TURNED, mixup=mixup), torch.device("cpu"), Processes(), {})
    classes = len(images.classes)
    outputs = torch.randn(8, classes + TURNS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    monkeypatch.setattr(trainee, "_model", lambda shown: outputs)
    targets = torch.tensor([3, 1, 2, 8, 0, 4, IGNORED, 5])
    logits, loss = trainee._logits_and_loss(torch.rand(8, 3, 32, 32), targets, 7)
    assert torch.equal(logits, outputs[:, :classes])
    share = draw_mixture(8, mixup, TINY.seed, 7).share if mixup else 1.0
    expected = torch.zeros((), dtype=torch.float64)
    for image in range(8):
        for part, asked in ((share, image), (1 - share, image ^ 1)):
            if targets[asked] != IGNORED:
                of_class = functional.cross_entropy(logits[image], targets[asked], label_smoothing=smooth)
                of_turn = functional.cross_entropy(outputs[image, classes:], choose_turns(8)[asked])
                expected += part * (of_class + WEIGHT * of_turn)
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("cosine", [False, True])
def test_a_training_with_turns_goes_on_where_it_was_interrupted_and_leaves_plain_weights(
    cosine: bool, tmp_path: Path
) -> None:
    config = replace(TURNED, cosine=cosine)
    train(tmp_path / "whole", config)
    train(tmp_path / "plain", replace(config, rotation=False))
    stop_after(tmp_path / "parts", 7, config=config)
    train(tmp_path / "parts", config)
    whole, parts, plain = (weights_of(tmp_path / name) for name in ("whole", "parts", "plain"))
    assert whole.keys() == plain.keys()
    assert {name: tensor.shape for name, tensor in whole.items()} == {name: one.shape for name, one in plain.items()}
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert any(not torch.equal(whole[name], plain[name]) for name in whole)

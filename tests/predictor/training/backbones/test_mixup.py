"""Blends of two images, and what a training asks of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from actstore.images.opening import open_images
from predictor.protocol.category_split import alphabetical_split
from predictor.training.backbones.batches import IGNORED
from predictor.training.backbones.images import draw_mixture, select_images
from predictor.training.backbones.trainee import BackboneTrainee
from predictor.training.processes import Processes
from tests.predictor.training.backbones.tiny import TINY, TINY_GLYPHS, stop_after, train, weights_of


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_partners_are_mutual_and_blends_keep_the_sum(count: int) -> None:
    mixture = draw_mixture(count, 0.3, seed=1, step=5)
    assert torch.equal(mixture.partners[mixture.partners], torch.arange(count))
    images = torch.rand(count, 3, 4, 4, dtype=torch.float64)
    blended = mixture.blend(images)
    torch.testing.assert_close(blended.sum(0), images.sum(0))
    if count > 1:
        torch.testing.assert_close(blended[0], mixture.share * images[0] + (1 - mixture.share) * images[1])
    if count % 2:
        torch.testing.assert_close(blended[-1], images[-1])


def test_even_parts_of_a_batch_are_blended_as_the_whole() -> None:
    images = torch.rand(12, 3, 4, 4, dtype=torch.float64)
    whole = draw_mixture(12, 0.3, 0, 9).blend(images)
    parts = [draw_mixture(6, 0.3, 0, 9).blend(images[first : first + 6]) for first in (0, 6)]
    assert torch.equal(torch.cat(parts), whole)


def test_shares_are_drawn_anew_at_every_step_and_the_same_again() -> None:
    shares = [draw_mixture(2, 0.3, 0, step).share for step in range(200)]
    assert len(set(shares)) == 200
    assert all(0.5 <= share <= 1 for share in shares)
    assert 0.8 < sum(shares) / 200 < 0.95
    assert shares[7] == draw_mixture(8, 0.3, 0, 7).share


def test_the_loss_asks_for_both_classes_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = open_images(TINY_GLYPHS)
    images = select_images(sets, alphabetical_split(sets["train"].classes), 0)
    trainee = BackboneTrainee(images, replace(TINY, mixup=0.3), torch.device("cpu"), Processes(), {})
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    monkeypatch.setattr(trainee, "_model", lambda blended: logits)
    _, loss = trainee._logits_and_loss(torch.rand(4, 3, 32, 32), torch.tensor([3, 1, IGNORED, 8]), 7)
    share, log, smooth = draw_mixture(4, 0.3, TINY.seed, 7).share, logits.log_softmax(1), TINY.label_smoothing
    asked = [(0, 3, share), (0, 1, 1 - share), (1, 1, share), (1, 3, 1 - share), (2, 8, 1 - share), (3, 8, share)]
    parts = [-part * ((1 - smooth) * log[image, target] + smooth * log[image].mean()) for image, target, part in asked]
    torch.testing.assert_close(loss, torch.stack(parts).sum())


def test_a_training_with_blends_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    blended = replace(TINY, mixup=0.3)
    train(tmp_path / "whole", blended)
    train(tmp_path / "plain")
    stop_after(tmp_path / "parts", 7, config=blended)
    train(tmp_path / "parts", blended)
    whole, parts, plain = (weights_of(tmp_path / name) for name in ("whole", "parts", "plain"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert any(not torch.equal(whole[name], plain[name]) for name in whole)

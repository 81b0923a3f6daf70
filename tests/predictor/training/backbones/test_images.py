"""Which images a training sees, which of them make up each step, and blends of two images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from actstore.errors import InvalidInputError
from actstore.images.glyphs import glyph_sets
from actstore.images.opening import open_images
from predictor.protocol.category_split import CategorySplit, alphabetical_split
from predictor.training.backbones.batches import IGNORED
from predictor.training.backbones.images import (
    draw_mixture,
    select_images,
    share_of,
    steps_per_epoch,
    training_plan,
)  # fmt: skip
from predictor.training.backbones.trainee import BackboneTrainee
from predictor.training.processes import Processes
from tests.predictor.training.backbones.tiny import TINY, TINY_GLYPHS, stop_after, train, weights_of


def test_an_epoch_is_a_permutation_cut_into_whole_batches() -> None:
    plan = list(training_plan(100, 32, 5, range(2)))
    assert [epoch for epoch, _ in plan] == [0, 0, 0, 1, 1, 1]
    for epoch in range(2):
        rows = np.concatenate([rows for number, rows in plan if number == epoch])
        assert len(set(rows.tolist())) == 96
    assert not np.array_equal(plan[0][1], plan[3][1])


def test_a_resumed_plan_is_the_rest_of_the_whole_one() -> None:
    whole = [rows.tolist() for _, rows in training_plan(100, 16, 5, range(3))]
    rest = [rows.tolist() for _, rows in training_plan(100, 16, 5, range(1, 3), first_step=4)]
    assert rest == whole[6 + 4 :]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_shares_of_processes_make_up_the_batch(count: int) -> None:
    shares = [list(share_of(training_plan(50, 16, 1, range(1)), rank, count)) for rank in range(count)]
    for step, (_, rows) in enumerate(training_plan(50, 16, 1, range(1))):
        assert np.concatenate([share[step][1] for share in shares]).tolist() == rows.tolist()


def test_fewer_images_than_a_batch_are_one_batch() -> None:
    assert steps_per_epoch(5, 32) == 1
    assert [len(rows) for _, rows in training_plan(5, 32, 0, range(2))] == [5, 5]


def test_only_base_classes_are_trained_on() -> None:
    sets = open_images("glyphs:10x4x2")
    split = CategorySplit(tuple(sets["train"].classes[3:6]), tuple(sets["train"].classes[:3]))
    chosen = select_images(sets, split, 0)
    assert {item.label for item in chosen.train.items} == set(split.base)
    assert {item.label for item in chosen.validation.items} == set(split.base)
    assert (len(chosen.train), len(chosen.validation), chosen.held_out) == (12, 6, "val")
    assert [split.base[target] for target in chosen.train.targets] == [item.label for item in chosen.train.items]


def test_without_a_split_val_a_tenth_of_every_class_is_held_out() -> None:
    sets = open_images("glyphs:5x20x0")
    split = alphabetical_split(sets["train"].classes)
    chosen = select_images(sets, split, 0)
    assert chosen.held_out == "10% of train"
    assert np.bincount(chosen.validation.targets).tolist() == [2] * 4
    ids = [{item.id for item in part.items} for part in (chosen.train, chosen.validation)]
    assert not ids[0] & ids[1]
    assert len(ids[0] | ids[1]) == 80
    other = select_images(sets, split, 1)
    assert chosen.fingerprint() == select_images(sets, split, 0).fingerprint() != other.fingerprint()


def test_the_fingerprint_tells_drawings_of_another_seed() -> None:
    prints = set()
    for seed in (0, 1):
        sets = glyph_sets(4, 3, 2, seed)
        prints.add(select_images(sets, alphabetical_split(sets["train"].classes), 0).fingerprint())
    assert len(prints) == 2


def test_images_that_do_not_do() -> None:
    sets = open_images("glyphs:4x1x0")
    names = sets["train"].classes
    with pytest.raises(InvalidInputError, match="base class 'owl' of the split is not among the 4 classes"):
        select_images(sets, CategorySplit(("owl",)), 0)
    with pytest.raises(InvalidInputError, match="no class has two images"):
        select_images(sets, CategorySplit(tuple(names)), 0)
    with pytest.raises(InvalidInputError, match="expected images in a split 'train', got val"):
        select_images({"val": sets["train"]}, CategorySplit(tuple(names)), 0)


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

"""Which images a training sees, and which of them make up each step: pure functions."""

from __future__ import annotations

import numpy as np
import pytest

from actstore.errors import InvalidInputError
from actstore.images.glyphs import GlyphSet
from actstore.images.opening import open_images
from predictor.protocol.category_split import CategorySplit, alphabetical_split
from predictor.training.backbones.images import (
    select_images,
    share_of,
    steps_per_epoch,
    training_plan,
)  # fmt: skip


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
        sets = GlyphSet(4, 3, 2, seed).image_sets()
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

"""What a training sees: presets, schedules, plans that are pure functions, and pixels. No training but one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from actstore.backbones.augmentation import augment_image, random_box, shift_batch
from actstore.backbones.presets import PRESETS, choose_preset
from actstore.backbones.schedule import learning_rate
from actstore.backbones.training import RunOptions, train_backbone
from actstore.backbones.training_batches import IGNORED, Batch, open_feed, to_network
from actstore.backbones.training_data import (
    LabelledImages,
    evaluation_plan,
    select_images,
    share_of,
    steps_per_epoch,
    training_plan,
)  # fmt: skip
from actstore.backbones.transform import Transform
from actstore.category_split import CategorySplit, alphabetical_split
from actstore.errors import InvalidInputError
from actstore.sources.glyphs import GlyphSet
from actstore.sources.images import find_images
from actstore.sources.spoken import open_images

TINY = choose_preset("quick", epochs=2, batch_size=12, learning_rate=0.05, warmup_epochs=0.5)
CPU = RunOptions(device="cpu")


# Presets and schedules


def test_the_papers_presets_hold_the_papers_values() -> None:
    for name, backbone in (("paper-simple", "simple"), ("paper-wrn", "wrn28-10")):
        config = PRESETS[name]
        assert config.backbone == backbone
        assert (config.learning_rate, config.schedule, config.weight_decay) == (0.1, "constant", 1e-4)
        assert (config.batch_size, config.epochs, config.image_size, config.flip) == (64, 300, 80, True)
        assert config.momentum == 0.9
        assert config.jitter
        assert config.lighting
    resnet = PRESETS["paper-resnet50"]
    assert (resnet.batch_size, resnet.epochs, resnet.decay_epochs, resnet.weight_decay) == (256, 90, 30, 1e-4)


def test_every_value_of_a_preset_can_be_overridden() -> None:
    config = choose_preset("quick", learning_rate=0.5, flip=True, epochs=None)
    assert (config.learning_rate, config.flip, config.epochs) == (0.5, True, PRESETS["quick"].epochs)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"epochs": 0}, "epochs must be 1 or more, got 0"),
        ({"learning_rate": float("nan")}, "learning rate must be 0 or more, got nan"),
        ({"momentum": 1.0}, "momentum must be from 0 to below 1"),
        ({"schedule": "linear"}, "schedule must be one of constant, step, cosine, got linear"),
        ({"shift": 40}, "shift must be less than the image size 32"),
        ({"augment": "crop"}, "images kept in memory can only be shifted"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidInputError, match=expected):
        choose_preset("quick", **changes)


def test_unknown_preset() -> None:
    with pytest.raises(InvalidInputError, match="no preset 'fast'; known: quick"):
        choose_preset("fast")


def test_learning_rates() -> None:
    step = PRESETS["paper-resnet50"]
    assert [learning_rate(step, epoch * 7, 7) for epoch in (0, 29, 30, 60, 89)] == pytest.approx(
        [0.1, 0.1, 0.01, 0.001, 0.001]
    )
    assert {learning_rate(PRESETS["paper-simple"], number, 7) for number in range(0, 2100, 99)} == {0.1}
    quick = choose_preset("quick", epochs=10, warmup_epochs=2)
    rates = [learning_rate(quick, number, 10) for number in range(100)]
    assert np.argmax(rates) == 20
    assert rates[20] == quick.learning_rate
    assert np.all(np.diff(rates[:21]) > 0)
    assert np.all(np.diff(rates[20:]) < 0)
    assert 0 < rates[0] < 0.1 * quick.learning_rate
    assert 0 < rates[-1] < 0.01 * quick.learning_rate


# Plans


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


# Which images


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


# Pixels


def shifted_by_hand(image: np.ndarray[Any, Any], down: int, right: int) -> np.ndarray[Any, Any]:
    padded = np.pad(image, ((9, 9), (9, 9), (0, 0)), mode="edge")
    size = len(image)
    return padded[9 - down : 9 - down + size, 9 - right : 9 - right + size]


def test_a_shift_is_a_crop_of_the_padded_image(random: np.random.Generator) -> None:
    pixels = random.integers(0, 256, (5, 16, 16, 3)).astype(np.uint8)
    rows, offsets = np.array([4, 0, 4]), np.array([[0, 0], [2, -3], [-9, 9]])
    found = shift_batch(*(torch.from_numpy(each) for each in (pixels, rows, offsets)), torch.tensor([False] * 3))
    for result, row, (down, right) in zip(found.numpy(), rows, offsets, strict=True):
        np.testing.assert_array_equal(result, shifted_by_hand(pixels[row], down, right))
    mirrored = shift_batch(torch.from_numpy(pixels), torch.tensor([1]), torch.zeros(1, 2).long(), torch.tensor([True]))
    np.testing.assert_array_equal(mirrored[0].numpy(), pixels[1][:, ::-1])


def test_random_boxes_lie_inside(random: np.random.Generator) -> None:
    shares = []
    for width, height in [(80, 60), (7, 300), (1, 1), (224, 224)] * 50:
        left, top, right, bottom = random_box(width, height, 0.08, random)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        shares.append((right - left) * (bottom - top) / (width * height))
    assert min(shares[3::4]) < 0.3 < 0.8 < max(shares[3::4])


def test_augmentation_is_a_function_of_its_generator(random: np.random.Generator) -> None:
    image = Image.fromarray(random.integers(0, 256, (90, 120, 3)).astype(np.uint8))
    config = PRESETS["paper-simple"]
    first, again, other = (augment_image(image, config, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.shape == (80, 80, 3)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    plain = replace(config, jitter=0.0, lighting=0.0, flip=False, min_scale=1.0)
    grey = Image.new("RGB", (100, 100), (90, 90, 90))
    assert (augment_image(grey, plain, random) == 90).all()
    coloured = augment_image(grey, replace(plain, jitter=0.4, lighting=0.1), random)
    assert np.ptp(coloured.reshape(-1, 3), axis=0).max() == 0  # one colour in, one colour out
    assert coloured[0, 0].tolist() != [90, 90, 90]


def labelled(count: int = 6) -> LabelledImages:
    return LabelledImages(GlyphSet(2, count // 2, 0).image_sets()["train"].items, np.arange(count) // (count // 2))


@pytest.mark.parametrize("in_memory", [True, False])
def test_evaluation_sees_exactly_what_the_transform_gives(in_memory: bool) -> None:
    images, transform = labelled(), Transform(resize=36, crop=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
    feed = open_feed(images, transform, TINY, in_memory, workers=0)
    (batch,) = feed.batches(evaluation_plan(6, 10))
    pixels, targets = to_network(batch, transform, torch.device("cpu"))
    assert torch.equal(pixels, torch.stack([transform(item.load()) for item in images.items]))
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert targets.tolist() == images.targets.tolist()


@pytest.mark.parametrize(("name", "workers"), [("quick", 0), ("paper-simple", 1)])  # a worker takes seconds to start
def test_batches_do_not_depend_on_workers_or_on_where_a_plan_begins(name: str, workers: int) -> None:
    images, config = labelled(20), choose_preset(name, image_size=32, in_memory=False, shift=3)
    transform = Transform(resize=32, crop=32)

    def batches(count: int, epochs: range, step: int) -> list[Batch]:
        feed = open_feed(images, transform, config, False, count)
        return list(feed.batches(training_plan(20, 8, 0, epochs, step)))

    whole, rest = batches(0, range(2), 0), batches(workers, range(1, 2), 1)
    assert len(whole) == 4
    assert torch.equal(whole[3].pixels, rest[0].pixels)
    assert torch.equal(whole[3].targets, rest[0].targets)
    assert len(rest) == 1


def test_images_in_memory_are_moved_anew_every_epoch() -> None:
    images, config = labelled(8), replace(TINY, shift=4, flip=True)
    feed = open_feed(images, Transform(resize=32, crop=32), config, True, 0)
    first, again = (list(feed.batches(training_plan(8, 8, 0, range(2)))) for _ in range(2))
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(first, again, strict=True))
    (later,) = feed.batches(training_plan(8, 8, 0, range(1, 2)))
    assert torch.equal(later.pixels, first[1].pixels)
    assert not torch.equal(later.pixels.sum((1, 2, 3)).sort().values, first[0].pixels.sum((1, 2, 3)).sort().values)


def test_unreadable_images_are_left_out_and_told(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        for number in range(6):
            path = tmp_path / "train" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 50), (number * 40, 99, 200 * (label == "cat"))).save(path)
    (tmp_path / "train" / "dog" / "2.png").write_bytes(b"no image")
    sets = find_images(tmp_path)
    feed = open_feed(
        select_images(sets, CategorySplit(("cat", "dog")), 0).train, Transform(resize=32, crop=32), TINY, True, 0
    )
    (batch,) = feed.batches(evaluation_plan(10, 32))
    assert batch.targets.tolist().count(IGNORED) == 1
    config = replace(TINY, batch_size=4)
    result = train_backbone(sets, CategorySplit(("cat", "dog")), config, tmp_path / "out", CPU)
    assert result.held_out == "10% of train"
    assert len(result.unreadable) == 1
    assert "dog/2.png" in result.unreadable[0]
    streamed = train_backbone(
        sets, CategorySplit(("cat", "dog")), replace(config, in_memory=False), tmp_path / "b", CPU
    )
    assert len(streamed.unreadable) == 1

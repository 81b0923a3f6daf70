"""Pixels of batches: augmentation, from memory or decoded by workers, and images that cannot be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from actstore.backbones.network import Transform
from actstore.images.glyphs import glyph_sets
from actstore.images.opening import find_images
from predictor.protocol.category_split import CategorySplit
from predictor.training.backbones.batches import IGNORED, Batch, open_feed, to_network
from predictor.training.backbones.config import PRESETS, choose_preset
from predictor.training.backbones.images import (
    LabelledImages,
    augment_image,
    crop_batch,
    evaluation_plan,
    random_box,
    random_boxes,
    select_images,
    shift_batch,
    shrink,
    training_plan,
)  # fmt: skip
from predictor.training.backbones.trainee import train_backbone

TINY = choose_preset("quick", epochs=2, batch_size=12, learning_rate=0.05, warmup_epochs=0.5)


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
    first, again, other = (augment_image(image, 80, config, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.shape == (80, 80, 3)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    plain = replace(config, jitter=0.0, lighting=0.0, flip=False, min_scale=1.0)
    grey = Image.new("RGB", (100, 100), (90, 90, 90))
    assert (augment_image(grey, 80, plain, random) == 90).all()
    coloured = augment_image(grey, 80, replace(plain, jitter=0.4, lighting=0.1), random)
    assert np.ptp(coloured.reshape(-1, 3), axis=0).max() == 0  # one colour in, one colour out
    assert coloured[0, 0].tolist() != [90, 90, 90]


def labelled(count: int = 6) -> LabelledImages:
    return LabelledImages(glyph_sets(2, count // 2, 0)["train"].items, np.arange(count) // (count // 2))


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


def cropped_by_hand(image: np.ndarray[Any, Any], box: list[float], size: int) -> np.ndarray[Any, Any]:
    """Bilinear between the centres of pixels, in float64; the border goes on outside."""
    side, (across, down, width, height) = len(image), box
    places = (np.arange(size) + 0.5) / size * 2 - 1
    columns, rows = (
        ((places * part + centre) + 1) / 2 * side - 0.5 for centre, part in ((across, width), (down, height))
    )
    weights = [np.maximum(0, 1 - np.abs(at.clip(0, side - 1)[:, None] - np.arange(side))) for at in (rows, columns)]
    return np.einsum("rs,ct,stk->rck", *weights, image.astype(np.float64))


def test_a_crop_lies_between_the_pixels_of_its_box(random: np.random.Generator) -> None:
    pixels = torch.from_numpy(random.integers(0, 256, (6, 21, 21, 3)).astype(np.uint8))
    boxes, flipped = random_boxes(6, 0.2, random), torch.tensor([False, True] * 3)
    boxes[0] = torch.tensor([0.0, 0.0, 1.0, 1.0])  # the whole
    crops = crop_batch(pixels, boxes, flipped, 16)
    assert crops.dtype == torch.uint8
    for crop, image, box, mirrored in zip(crops.numpy(), pixels.numpy(), boxes.tolist(), flipped, strict=True):
        expected = cropped_by_hand(image, box, 16)
        np.testing.assert_allclose(crop, expected[:, ::-1] if mirrored else expected, atol=0.51)


def test_random_boxes_lie_in_the_square(random: np.random.Generator) -> None:
    across, down, width, height = random_boxes(5000, 0.25, random).double().T
    assert ((across.abs() + width <= 1 + 1e-6) & (down.abs() + height <= 1 + 1e-6)).all()
    assert 0.25 * 0.75 <= float((width * height).min()) < 0.3 < 0.9 < float((width * height).max()) <= 1
    assert float((width / height).min()) >= 0.75 - 1e-6
    assert float((width / height).max()) <= 4 / 3 + 1e-6


def test_images_in_memory_are_cropped_at_the_size_of_their_epoch() -> None:
    images, config = labelled(8), replace(TINY, epochs=4, augment="crop", min_scale=0.5, start_size=16)
    feed = open_feed(images, Transform(resize=32, crop=32), config, True, 0)
    first, again = (list(feed.batches(training_plan(8, 8, 0, range(4)))) for _ in range(2))
    assert [batch.pixels.shape[1] for batch in first] == [16, 16, 32, 32]
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(first, again, strict=True))
    (later,) = feed.batches(training_plan(8, 8, 0, range(3, 4)))
    assert torch.equal(later.pixels, first[3].pixels)
    assert not torch.equal(
        first[2].pixels.float().mean((1, 2, 3)).sort().values, first[3].pixels.float().mean((1, 2, 3)).sort().values
    )
    grey = torch.full((3, 42, 42, 3), 90, dtype=torch.uint8)
    assert (shrink(grey, 21) == 90).all()


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
    result = train_backbone(sets, CategorySplit(("cat", "dog")), config, tmp_path / "out", "cpu")
    assert result.held_out == "10% of train"
    assert len(result.unreadable) == 1
    assert "dog/2.png" in result.unreadable[0]
    streamed = train_backbone(
        sets, CategorySplit(("cat", "dog")), replace(config, in_memory=False), tmp_path / "b", "cpu"
    )
    assert len(streamed.unreadable) == 1

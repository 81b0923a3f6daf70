"""Tasks of images: pixels decoded once and kept in memory as bytes, drawn by the planner that all methods share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from actstore.backbones.network import Transform
from actstore.backbones.resnet import Simple
from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageSet, Loadable
from actstore.layout.class_index import ClassIndex
from predictor.protocol.episodes import Examples
from predictor.protocol.tasks import TaskSize, plan_tasks
from predictor.training.backbones.batches import MEMORY_LIMIT, Batch, StreamedImages, to_network
from predictor.training.backbones.config import choose_preset
from predictor.training.backbones.images import LabelledImages, evaluation_plan

_DECODE_BATCH = 100
Decoded = Callable[[int, int], None]  # images done, images in all


def image_transform(size: int) -> Transform:
    """The whole image, scaled: few-shot learning crops nothing away."""
    return replace(Simple.transform, resize=size, crop=size)


def decode_classes(
    sets: Mapping[str, ImageSet[Loadable]],
    classes: Sequence[str],
    size: int,
    workers: int = 0,
    decoded: Decoded | None = None,
) -> Examples:
    """All images of these classes, pooled over the splits -> values (images, size, size, 3) uint8.

    In the same order as `gather_classes` gives a store's rows: tasks of the same number show the same images.
    An image that cannot be read is an error, as leaving it out would shift the others.
    """
    images = _of_classes(sets, classes)
    if len(images) * 3 * size**2 > MEMORY_LIMIT:
        raise InvalidInputError(
            f"{len(images):,} images of {size}x{size} need more than {MEMORY_LIMIT:,} bytes; use a smaller image size"
        )
    config = choose_preset("quick", image_size=size)  # decoding without augmentation reads none of its other values
    source = StreamedImages(images, image_transform(size), config, workers)
    pixels = torch.empty(len(images), size, size, 3, dtype=torch.uint8)
    done = 0
    for batch in source.batches(evaluation_plan(len(images), _DECODE_BATCH)):
        if batch.unreadable:
            raise InvalidInputError(f"{batch.unreadable[0]}; remove it, or repair it")
        pixels[done : done + len(batch.pixels)] = batch.pixels
        done += len(batch.pixels)
        if decoded is not None:
            decoded(done, len(images))
    return Examples(pixels, ClassIndex(classes, images.targets), np.arange(len(classes)))


def _of_classes(sets: Mapping[str, ImageSet[Loadable]], classes: Sequence[str]) -> LabelledImages:
    """Sorted by class, then by split, then as in the split."""
    target_of: dict[str | None, int] = {name: target for target, name in enumerate(classes)}
    items = [item for images in sets.values() for item in images.items if item.label in target_of]
    items.sort(key=lambda item: target_of[item.label])
    targets = np.array([target_of[item.label] for item in items], np.int64)
    if missing := set(range(len(classes))) - set(targets.tolist()):
        name = classes[min(missing)]
        raise InvalidInputError(f"class {name!r} has no images; choose the split that belongs to these images")
    return LabelledImages(items, targets)


def draw_tasks(examples: Examples, size: TaskSize, seed: int, numbers: range) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels of support (tasks, way, shots, s, s, 3) and queries (tasks, n, s, s, 3), and targets (tasks, n)."""
    batch = plan_tasks(examples.index, examples.labels, size, seed, numbers)
    support, queries = (examples.values[torch.from_numpy(rows)] for rows in (batch.support, batch.queries))
    return support, queries, torch.from_numpy(batch.targets)


def as_images(pixels: Tensor, transform: Transform, device: torch.device) -> Tensor:
    """(…, s, s, 3) uint8 -> (…, 3, s, s) float32, normalised, on the device."""
    flat = pixels.flatten(0, -4)
    images, _ = to_network(Batch(flat, torch.empty(0)), transform, device)
    return images.view(*pixels.shape[:-3], *images.shape[1:])

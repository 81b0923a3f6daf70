"""Which images are trained on and which are held out, and which of them make up each step. Planning only: no I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageItem, ImageSet, Loadable
from actstore.streams.sampling import Stream, epoch_order, generator
from predictor.protocol.category_split import CategorySplit

HELD_OUT_SHARE = 0.1
VAL = "val"
EVALUATION = -1  # in place of an epoch: no augmentation
Rows = NDArray[np.int64]
Plan = Iterator[tuple[int, Rows]]  # (epoch, rows of one batch)


@dataclass(frozen=True)
class LabelledImages:
    """items[i] is of class targets[i]."""

    items: Sequence[Loadable]
    targets: Rows

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class TrainingImages:
    """Images of the base classes. held_out: where those of `validation` come from, in words."""

    classes: tuple[str, ...]
    train: LabelledImages
    validation: LabelledImages
    held_out: str

    @property
    def may_choose(self) -> bool:
        """Whether the best epoch may be told by `validation`. Not by val: base accuracy is measured on it later, and
        would be that of the epoch which those very images liked best."""
        return self.held_out != VAL

    def fingerprint(self) -> str:
        """Of the names and labels of all images; of what decides the pixels where they are drawn."""
        digest = hashlib.sha256()
        for part in (self.train, self.validation):
            for item in part.items:
                key = f"{item.id}\n{item.label}" if isinstance(item, ImageItem) else repr(item)
                digest.update(f"{key}\n".encode())
            digest.update(b"\0")
        return digest.hexdigest()


def select_images(sets: Mapping[str, ImageSet[Loadable]], split: CategorySplit, seed: int) -> TrainingImages:
    """Images of split.base; "val" is held out, or, where it has none of them, a seeded tenth of each class of train."""
    if "train" not in sets:
        raise InvalidInputError(f"expected images in a split 'train', got {', '.join(sets) or 'no images at all'}")
    split.require_known(sets["train"].classes, ["base"])
    train = images_of_classes(sets["train"], split.base)
    counts = np.bincount(train.targets, minlength=len(split.base))
    if not counts.all():
        raise InvalidInputError(f"base class {split.base[int(np.argmin(counts))]!r} has no images to train on")
    if VAL in sets:
        validation = images_of_classes(sets[VAL], split.base)
        if len(validation):
            return TrainingImages(split.base, train, validation, VAL)
    chosen = _held_out(train.targets, len(split.base), seed)
    if not chosen.any():
        raise InvalidInputError(
            "nothing to measure accuracy on: there is no split 'val' and no class has two images; add some of either"
        )
    return TrainingImages(split.base, _part(train, ~chosen), _part(train, chosen), f"{HELD_OUT_SHARE:.0%} of train")


def images_of_classes(images: ImageSet[Loadable], classes: Sequence[str]) -> LabelledImages:
    """In the order of their source; targets are places among the classes."""
    target_of = {name: target for target, name in enumerate(classes)}
    items = [item for item in images.items if item.label in target_of]
    return LabelledImages(items, np.array([target_of[item.label or ""] for item in items], np.int64))


def _held_out(targets: Rows, classes: int, seed: int) -> NDArray[np.bool_]:
    """(n,): whether an image is held out; of each class with two or more images a tenth, and at least one."""
    chosen = np.zeros(len(targets), bool)
    for target in range(classes):
        rows = np.flatnonzero(targets == target)
        count = max(1, round(HELD_OUT_SHARE * len(rows))) if len(rows) > 1 else 0
        chosen[generator(seed, target, Stream.HELD_OUT_IMAGES).permutation(rows)[:count]] = True
    return chosen


def _part(images: LabelledImages, chosen: NDArray[np.bool_]) -> LabelledImages:
    rows = np.flatnonzero(chosen)
    return LabelledImages([images.items[row] for row in rows.tolist()], images.targets[rows])


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Whole batches only: the few images left over come first or last in some other epoch."""
    return max(1, images // batch_size)


def training_plan(images: int, batch_size: int, seed: int, epochs: range, first_step: int = 0) -> Plan:
    """Batches of these epochs, from step `first_step` of the first of them on."""
    for epoch in epochs:
        order = epoch_order(images, seed, epoch)
        for step in range(first_step if epoch == epochs.start else 0, steps_per_epoch(images, batch_size)):
            yield epoch, order[step * batch_size : (step + 1) * batch_size]


def evaluation_plan(images: int, batch_size: int) -> Plan:
    for first in range(0, images, batch_size):
        yield EVALUATION, np.arange(first, min(first + batch_size, images))


def share_of(plan: Plan, rank: int, processes: int) -> Plan:
    """The contiguous part of every batch that one of several processes computes; together they are the batch."""
    for epoch, rows in plan:
        yield epoch, rows[len(rows) * rank // processes : len(rows) * (rank + 1) // processes]

"""Which images are trained on and which are held out, which of them make up each step, and how they are changed at
random. No I/O; every draw comes from a generator that is passed in, never from global state."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageItem, ImageSet, Loadable
from actstore.streams.sampling import Stream, epoch_order, generator
from predictor.protocol.category_split import CategorySplit
from predictor.training.backbones.config import TrainingConfig

HELD_OUT_SHARE = 0.1
VAL = "val"
EVALUATION = -1  # in place of an epoch: no augmentation
Rows = NDArray[np.int64]
Plan = Iterator[tuple[int, Rows]]  # (epoch, rows of one batch)
# Principal components of the colours of ImageNet's pixels (Krizhevsky et al., NIPS 2012), as in torch's old examples.
COLOUR_STD = np.array([0.2175, 0.0188, 0.0045], np.float32)
COLOUR_DIRECTIONS = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]], np.float32
)  # (rgb, component)
GREY = np.array([0.299, 0.587, 0.114], np.float32)  # luminance of r, g, b


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
    """Images of split.base. "val" is held out; where it has none of them, a seeded tenth of each class of train."""
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
    chosen = np.zeros(len(train), bool)
    for target, count in enumerate(counts.tolist()):
        rows = generator(seed, target, Stream.HELD_OUT_IMAGES).permutation(np.flatnonzero(train.targets == target))
        chosen[rows[: max(1, round(HELD_OUT_SHARE * count)) if count > 1 else 0]] = True
    if not chosen.any():
        raise InvalidInputError(
            "nothing to measure accuracy on: there is no split 'val' and no class has two images; add some of either"
        )
    shown, held_out = (
        LabelledImages([train.items[row] for row in np.flatnonzero(part).tolist()], train.targets[part])
        for part in (~chosen, chosen)
    )
    return TrainingImages(split.base, shown, held_out, f"{HELD_OUT_SHARE:.0%} of train")


def images_of_classes(images: ImageSet[Loadable], classes: Sequence[str]) -> LabelledImages:
    """In the order of their source; targets are places among the classes."""
    target_of = {name: target for target, name in enumerate(classes)}
    items = [item for item in images.items if item.label in target_of]
    return LabelledImages(items, np.array([target_of[item.label or ""] for item in items], np.int64))


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


def augment_image(
    image: Image.Image, size: int, config: TrainingConfig, random: np.random.Generator
) -> NDArray[np.uint8]:
    """A PIL image in RGB -> (size, size, 3): random-resized crop, flip, colour jitter, PCA lighting."""
    box = random_box(image.width, image.height, config.min_scale, random)
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))  # (size, size, 3)
    is_flipped = config.flip and random.random() < 0.5
    return change_colours(pixels[:, ::-1] if is_flipped else pixels, config, random)


def random_box(width: int, height: int, min_scale: float, random: np.random.Generator) -> tuple[int, int, int, int]:
    """(left, top, right, bottom): min_scale to 1 of the area, 3:4 to 4:3; the centre where ten draws do not fit."""
    for _ in range(10):
        area = width * height * random.uniform(min_scale, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = int(random.integers(width - across + 1)), int(random.integers(height - down + 1))
            return left, top, left + across, top + down
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def change_colours(pixels: NDArray[np.uint8], config: TrainingConfig, random: np.random.Generator) -> NDArray[np.uint8]:
    """Brightness, contrast and saturation by a factor of 1 ± jitter each, in random order; then PCA lighting."""
    if not config.jitter and not config.lighting:
        return pixels
    values = pixels.astype(np.float32)  # (h, w, 3), 0 to 255
    for kind in random.permutation(3) if config.jitter else ():
        factor = np.float32(random.uniform(1 - config.jitter, 1 + config.jitter))
        grey = (values @ GREY)[..., None]  # (h, w, 1)
        other = (0, grey.mean(), grey)[kind]  # what is blended in: black, the mean grey, or the image in grey
        values = (other + factor * (values - other)).clip(0, 255)
    if config.lighting:
        strengths = random.normal(0, config.lighting, 3).astype(np.float32) * COLOUR_STD
        values = values + 255 * (COLOUR_DIRECTIONS @ strengths)
    changed: NDArray[np.uint8] = np.rint(values.clip(0, 255)).astype(np.uint8)
    return changed


def shift_batch(pixels: Tensor, rows: Tensor, offsets: Tensor, flipped: Tensor) -> Tensor:
    """Images `rows` (n,) of pixels (images, s, s, channels), each moved by its offset and mirrored where flipped.

    offsets: (n, 2), down and right, in pixels; what comes in from outside repeats the border. A gather, with
    no padded copy: 2.5 ms for 128 images of 32x32 on one core, of 90 for the step.
    """
    size = pixels.shape[1]
    places = torch.arange(size)
    down = (places - offsets[:, :1]).clamp_(0, size - 1)  # (n, s), row to read from
    right = (places - offsets[:, 1:]).clamp_(0, size - 1)
    right = torch.where(flipped[:, None], size - 1 - right, right)
    return pixels[rows[:, None, None], down[:, :, None], right[:, None, :]]  # (n, s, s, channels)


def random_boxes(count: int, min_scale: float, random: np.random.Generator) -> Tensor:
    """(count, 4): centre across and down, width and height of parts of a square that reaches from -1 to 1.

    min_scale to 1 of the area, 3:4 to 4:3 where that fits, else as wide or high as the square.
    """
    area = random.uniform(min_scale, 1, count)
    ratio = np.exp(random.uniform(math.log(3 / 4), math.log(4 / 3), count))
    sides = np.minimum(1, np.sqrt([area * ratio, area / ratio]))  # (2, count), width and height; 1 is the whole
    centres = random.uniform(-1, 1, (2, count)) * (1 - sides)
    return torch.from_numpy(np.concatenate([centres, sides]).T.astype(np.float32))


def crop_batch(pixels: Tensor, boxes: Tensor, flipped: Tensor, size: int) -> Tensor:
    """The box (n, 4) of each image of pixels (n, s, s, 3) uint8, mirrored where flipped -> (n, size, size, 3) uint8.

    One gather for the whole batch: 128 images of 84x84 to 64x64 took 7 ms on one core, of 350 for the step.
    """
    places = (torch.arange(size) * 2 + 1) / size - 1  # of the centres of the new pixels, -1 to 1
    across = torch.where(flipped[:, None], -places, places) * boxes[:, 2:3] + boxes[:, :1]  # (n, size)
    down = places * boxes[:, 3:] + boxes[:, 1:2]
    grid = torch.stack(
        [across[:, None, :].expand(-1, size, -1), down[:, :, None].expand(-1, -1, size)], 3
    )  # (n, size, size, 2)
    images = pixels.permute(0, 3, 1, 2).float()
    cropped = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)  # (n, 3, size, size)
    return cropped.round_().to(torch.uint8).permute(0, 2, 3, 1)


def shrink(pixels: Tensor, size: int) -> Tensor:
    """(n, s, s, 3) uint8 -> (n, size, size, 3) uint8, every old pixel counted."""
    parts = [
        functional.interpolate(part.permute(0, 3, 1, 2).float(), (size, size), mode="bilinear", antialias=True)
        for part in torch.split(pixels, 512)
    ]
    return torch.cat([part.round_().to(torch.uint8).permute(0, 2, 3, 1).contiguous() for part in parts])


@dataclass(frozen=True)
class Mixture:
    """What a network is shown: blends of two images, of whose classes it is asked for both in proportion. Image i of a
    batch counts for `share`, half or more, image partners[i] for the rest.

    Zhang, Cisse, Dauphin and Lopez-Paz, mixup: Beyond Empirical Risk Minimization, ICLR 2018. It helps in trainings so
    long that the images themselves are known by heart (docs/results.md).
    """

    share: float
    partners: Tensor

    def blend(self, images: Tensor) -> Tensor:
        """(n, 3, h, w), each with its partner."""
        return torch.lerp(images[self.partners], images, self.share)


def draw_mixture(count: int, strength: float, seed: int, step: int) -> Mixture:
    """Of a batch of so many images, a pure function of (seed, step); the share is drawn from Beta(strength, strength).

    Neighbours are partners: a batch is in random order anyway, and they stay together where several processes share it
    in even parts. The last of an odd number is shown as it is.
    """
    share = float(generator(seed, step, Stream.MIXUP).beta(strength, strength))
    # both of a pair are shown: which of them counts for more changes nothing but the accuracy on training images
    return Mixture(max(share, 1 - share), (torch.arange(count) ^ 1).clamp_(max=count - 1))

"""Images of a plan as batches of pixels: from memory, or decoded and augmented in loader workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from actstore.backbones.transform import Transform
from actstore.errors import InvalidInputError, UnreadableImageError
from actstore.images.image_set import Loadable
from actstore.streams.sampling import Stream, generator
from predictor.training.backbones.augmentation import augment_image, change_colours, shift_batch
from predictor.training.backbones.config import TrainingConfig
from predictor.training.backbones.images import EVALUATION, LabelledImages, Plan, Rows, evaluation_plan

IGNORED = -100  # the target of an image that cannot be read; torch's losses leave it out
MEMORY_LIMIT = 2_000_000_000  # bytes of decoded pixels to keep
_DECODE_BATCH = 100


@dataclass(frozen=True)
class Batch:
    """pixels (n, s, s, 3) uint8 and targets (n,) int64; unreadable: why an image has the target IGNORED."""

    pixels: Tensor
    targets: Tensor
    unreadable: list[str] = field(default_factory=list)


class Feed(Protocol):
    """Turns a plan into batches."""

    def batches(self, plan: Plan) -> Iterator[Batch]: ...


def open_feed(
    images: LabelledImages,
    transform: Transform,
    config: TrainingConfig,
    in_memory: bool,
    workers: int,
    pin: bool = False,
    decoded: Callable[[int, int], None] | None = None,
) -> Feed:
    """Memory where it is wanted and enough, else workers. decoded: told of (images done, images in all)."""
    streamed = StreamedImages(images, transform, config, workers, pin)
    if in_memory and len(images) * 3 * transform.crop**2 <= MEMORY_LIMIT:
        return ImagesInMemory(images, streamed, config, decoded)
    return streamed


class _DecodedBatches(Dataset[Batch]):
    """Batches by (epoch, rows). Picklable: workers may be spawned."""

    def __init__(self, images: LabelledImages, transform: Transform, config: TrainingConfig) -> None:
        self._images, self._config, self._transform = images, config, transform
        # without normalisation, so that pixels travel between processes as bytes
        self._scaled = replace(transform, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))

    def __getitem__(self, place: tuple[int, Rows]) -> Batch:
        epoch, rows = place
        targets, unreadable = torch.from_numpy(self._images.targets[rows]), []
        size = self._transform.crop
        pixels = torch.zeros(len(rows), size, size, 3, dtype=torch.uint8)
        for position, row in enumerate(rows):
            try:
                pixels[position] = torch.from_numpy(self._load(self._images.items[row], epoch, int(row)).copy())
            except UnreadableImageError as error:
                targets[position] = IGNORED
                unreadable.append(str(error))
        return Batch(pixels, targets, unreadable)

    def _load(self, item: Loadable, epoch: int, row: int) -> NDArray[np.uint8]:
        """(size, size, 3); a pure function of (seed, epoch, row)."""
        config = self._config
        if epoch == EVALUATION:
            return self._centre(item)
        random = np.random.default_rng([config.seed, epoch, row])
        if config.augment == "crop":
            # the smallest crop still has about as many pixels as it is scaled to
            needed = int(config.image_size / config.min_scale**0.5)
            return augment_image(item.load(at_least=needed), config, random)
        pixels = torch.from_numpy(self._centre(item))[None]
        offset = torch.from_numpy(random.integers(-config.shift, config.shift + 1, (1, 2)))
        flipped = torch.tensor([config.flip and random.random() < 0.5])
        shifted = shift_batch(pixels, torch.zeros(1, dtype=torch.int64), offset, flipped)[0].numpy()
        return change_colours(shifted, config, random)

    def _centre(self, item: Loadable) -> NDArray[np.uint8]:
        values = self._scaled(item.load(at_least=self._transform.resize)).numpy()  # (3, size, size), 0 to 1
        # by numpy: torch would wake its threads for every single image
        pixels: NDArray[np.uint8] = np.rint(values * 255).astype(np.uint8).transpose(1, 2, 0)
        return pixels


class StreamedImages:
    """Decodes every image anew each time."""

    def __init__(
        self, images: LabelledImages, transform: Transform, config: TrainingConfig, workers: int, pin: bool = False
    ) -> None:
        self._dataset = _DecodedBatches(images, transform, config)
        self._workers, self._pin = workers, pin

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """One set of workers for the whole plan: they run ahead over the end of an epoch too."""
        yield from DataLoader(
            self._dataset,
            batch_size=None,
            sampler=plan,
            num_workers=self._workers,
            prefetch_factor=2 if self._workers else None,
            # forking a process that computes in threads can hang
            multiprocessing_context="spawn" if self._workers else None,
            pin_memory=self._pin,
            generator=torch.Generator().manual_seed(0),  # else it draws its workers' seeds from the global one
        )


class ImagesInMemory:
    """Every image decoded once; a batch is augmented as a whole."""

    def __init__(
        self,
        images: LabelledImages,
        source: StreamedImages,
        config: TrainingConfig,
        decoded: Callable[[int, int], None] | None,
    ) -> None:
        self._config, self._done = config, 0
        parts = []
        for batch in source.batches(evaluation_plan(len(images), _DECODE_BATCH)):
            parts.append(batch)
            self._done += len(batch.targets)
            if decoded is not None:
                decoded(self._done, len(images))
        self._pixels = torch.cat([part.pixels for part in parts])  # (images, s, s, 3)
        self._targets = torch.cat([part.targets for part in parts])
        self._unreadable = [line for part in parts for line in part.unreadable]
        if len(self._unreadable) == len(images):
            raise InvalidInputError(f"none of {len(images):,} images can be read, such as {self._unreadable[0]}")

    def batches(self, plan: Plan) -> Iterator[Batch]:
        unreadable, drawn_for = self._unreadable, EVALUATION
        offsets, flipped = _draw(len(self._targets), EVALUATION, self._config)
        for epoch, rows in plan:
            if epoch != drawn_for:
                offsets, flipped = _draw(len(self._targets), epoch, self._config)
                drawn_for = epoch
            where = torch.from_numpy(rows)
            pixels = shift_batch(self._pixels, where, offsets[where], flipped[where])
            yield Batch(pixels, self._targets[where], unreadable)
            unreadable = []  # told once


def _draw(images: int, epoch: int, config: TrainingConfig) -> tuple[Tensor, Tensor]:
    """offsets (images, 2) and flipped (images,) of one epoch: pure functions of (seed, epoch, image)."""
    offsets, flipped = np.zeros((images, 2), np.int64), np.zeros(images, bool)
    if epoch != EVALUATION and config.augment == "shift":
        random = generator(config.seed, epoch, Stream.CROP_SHIFTS)
        offsets = random.integers(-config.shift, config.shift + 1, (images, 2))
    if epoch != EVALUATION and config.flip:
        flipped = generator(config.seed, epoch, Stream.FLIPS).random(images) < 0.5
    return torch.from_numpy(offsets), torch.from_numpy(flipped)


def to_network(batch: Batch, transform: Transform, device: torch.device) -> tuple[Tensor, Tensor]:
    """(n, 3, s, s) float32 in channels_last, bit for bit what the transform gives, and the targets, on the device."""
    pixels = batch.pixels.to(device, non_blocking=True).permute(0, 3, 1, 2)  # a view: rows of pixels stay together
    options: dict[str, Any] = {"device": device, "dtype": torch.float32}
    mean, std = (torch.tensor(values, **options).view(3, 1, 1) for values in (transform.mean, transform.std))
    return pixels.float().div_(255).sub_(mean).div_(std), batch.targets.to(device, non_blocking=True)

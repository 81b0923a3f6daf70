"""Images of a plan as batches of pixels: from memory, or decoded and augmented in loader workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from actstore.backbones.network import Transform
from actstore.errors import InvalidInputError, UnreadableImageError
from actstore.images.image_set import Loadable
from actstore.streams.sampling import Stream, generator
from predictor.training.backbones.config import TrainingConfig
from predictor.training.backbones.images import (
    EVALUATION,
    LabelledImages,
    Plan,
    Rows,
    augment_image,
    change_colours,
    crop_batch,
    evaluation_plan,
    random_boxes,
    shift_batch,
    shrink,
)

IGNORED = -100  # the target of an image that cannot be read; torch's losses leave it out
MEMORY_LIMIT = 2_000_000_000  # bytes of decoded pixels to keep
_DECODE_BATCH = 100
CROPPED_FROM = 21 / 16  # side of a square kept in memory to that of its random crops: 84 pixels for 64


@dataclass(frozen=True)
class Batch:
    """pixels (n, s, s, 3) uint8 and targets (n,) int64; unreadable: why an image has the target IGNORED."""

    pixels: Tensor
    targets: Tensor
    unreadable: list[str] = field(default_factory=list)

    def pin_memory(self) -> Batch:
        """As torch's loader asks for it: memory from which copies to a device run beside the host."""
        return replace(self, pixels=self.pixels.pin_memory(), targets=self.targets.pin_memory())

    def readable(self) -> Batch:
        """Those images alone that could be read; still on the host, which need not wait for the device to count."""
        chosen = self.targets != IGNORED
        return self if bool(chosen.all()) else Batch(self.pixels[chosen], self.targets[chosen], self.unreadable)


class Feed(Protocol):
    """Turns a plan into batches."""

    def batches(self, plan: Plan) -> Iterator[Batch]: ...


def open_feed(
    images: LabelledImages, transform: Transform, config: TrainingConfig, in_memory: bool, workers: int,
    pin: bool = False, decoded: Callable[[int, int], None] | None = None,
) -> Feed:  # fmt: skip
    """Memory where it is wanted and enough, else workers. decoded: told of (images done, images in all)."""
    streamed = StreamedImages(images, transform, config, workers, pin)
    side = round(CROPPED_FROM * transform.crop) if config.augment == "crop" else transform.crop
    if in_memory and len(images) * 3 * side**2 <= MEMORY_LIMIT:
        if config.augment == "crop":
            transform = replace(transform, resize=side, crop=side)
        return ImagesInMemory(images, StreamedImages(images, transform, config, workers), config, pin, decoded)
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
        size = self._transform.crop if epoch == EVALUATION else self._config.size_of(epoch)
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
            size = config.size_of(epoch)
            return augment_image(item.load(at_least=int(size / config.min_scale**0.5)), size, config, random)
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
            self._dataset, batch_size=None, sampler=plan, num_workers=self._workers,
            prefetch_factor=2 if self._workers else None,
            # forking a process that computes in threads can hang
            multiprocessing_context="spawn" if self._workers else None,
            pin_memory=self._pin,
            generator=torch.Generator().manual_seed(0),  # else it draws its workers' seeds from the global one
        )  # fmt: skip

    def decode_all(self, count: int, decoded: Callable[[int, int], None] | None = None) -> Batch:
        """All images as they are, as one batch. decoded: told of (images done, images in all)."""
        parts, done = list[Batch](), 0
        for batch in self.batches(evaluation_plan(count, _DECODE_BATCH)):
            parts.append(batch)
            done += len(batch.targets)
            if decoded is not None:
                decoded(done, count)
        pixels, targets = torch.cat([part.pixels for part in parts]), torch.cat([part.targets for part in parts])
        return Batch(pixels, targets, [line for part in parts for line in part.unreadable])


class ImagesInMemory:
    """Every image decoded once; a batch is augmented as a whole."""

    def __init__(
        self, images: LabelledImages, source: StreamedImages, config: TrainingConfig, pin: bool,
        decoded: Callable[[int, int], None] | None,
    ) -> None:  # fmt: skip
        self._config, self._pin = config, pin
        self._smaller: Tensor | None = None
        whole = source.decode_all(len(images), decoded)
        self._pixels, self._targets, self._unreadable = whole.pixels, whole.targets, whole.unreadable
        if len(self._unreadable) == len(images):
            raise InvalidInputError(f"none of {len(images):,} images can be read, such as {self._unreadable[0]}")

    def batches(self, plan: Plan) -> Iterator[Batch]:
        unreadable, epoch_drawn = self._unreadable, EVALUATION - 1
        change: Callable[[Tensor], Tensor] = self._pixels.__getitem__
        for epoch, rows in plan:
            if epoch != epoch_drawn:
                change, epoch_drawn = self._changes(epoch), epoch
            places = torch.from_numpy(rows)
            batch = Batch(change(places), self._targets[places], unreadable)
            yield batch.pin_memory() if self._pin else batch
            unreadable = []  # told once

    def _changes(self, epoch: int) -> Callable[[Tensor], Tensor]:
        """Rows (n,) -> their pixels as they are shown in an epoch: a pure function of (seed, epoch, row)."""
        config, count = self._config, len(self._targets)
        if epoch == EVALUATION:
            return self._pixels.__getitem__
        flipped = torch.zeros(count, dtype=torch.bool)
        if config.flip:
            flipped = torch.from_numpy(generator(config.seed, epoch, Stream.FLIPS).random(count) < 0.5)
        if config.augment == "crop":
            size = config.size_of(epoch)
            pixels = self._of_side(round(CROPPED_FROM * size))
            boxes = random_boxes(count, config.min_scale, generator(config.seed, epoch, Stream.CROP_BOXES))
            return lambda rows: crop_batch(pixels[rows], boxes[rows], flipped[rows], size)
        offsets = torch.zeros(count, 2, dtype=torch.int64)
        if config.augment == "shift":
            random = generator(config.seed, epoch, Stream.CROP_SHIFTS)
            offsets = torch.from_numpy(random.integers(-config.shift, config.shift + 1, (count, 2)))
        return lambda rows: shift_batch(self._pixels, rows, offsets[rows], flipped[rows])

    def _of_side(self, side: int) -> Tensor:
        """(images, side, side, 3): the images themselves, or smaller ones, kept while that size lasts."""
        if side == self._pixels.shape[1]:
            self._smaller = None
            return self._pixels
        if self._smaller is None or self._smaller.shape[1] != side:
            self._smaller = shrink(self._pixels, side)
        return self._smaller


def to_network(batch: Batch, transform: Transform, device: torch.device) -> tuple[Tensor, Tensor]:
    """(n, 3, s, s) float32 in channels_last, bit for bit what the transform gives, and the targets, on the device."""
    pixels = batch.pixels.to(device, non_blocking=True).permute(0, 3, 1, 2)  # a view: rows of pixels stay together
    options: dict[str, Any] = {"device": device, "dtype": torch.float32}
    mean, std = (torch.tensor(values, **options).view(3, 1, 1) for values in (transform.mean, transform.std))
    values = pixels.float().div_(255).sub_(mean).div_(std).contiguous(memory_format=torch.channels_last)
    return values, batch.targets.to(device, non_blocking=True)


def count_recognised(
    logits_of: Callable[[Tensor], Tensor],
    batches: Iterable[Batch],
    transform: Transform,
    size: int,
    device: torch.device,
) -> Tensor:
    """(3,) images that were recognised at top-1 and at top-5, and all that could be read. size: side of the images."""
    counts = torch.zeros(3, device=device)  # whole numbers, exact up to 16 million
    with torch.inference_mode():
        for batch in batches:
            if not len(batch.targets):
                continue
            if size != transform.crop:
                batch = replace(batch, pixels=shrink(batch.pixels, size))
            images, targets = to_network(batch, transform, device)
            logits = logits_of(images)  # (n, n_class)
            hits = logits.topk(min(5, logits.shape[1])).indices == targets[:, None]  # (n, 5)
            counts += torch.stack([hits[:, 0].sum(), hits.sum(), (targets != IGNORED).sum()])
    return counts

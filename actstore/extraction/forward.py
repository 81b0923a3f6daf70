"""Images -> backbone -> rows, batch by batch, before they go into a store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from numpy.typing import NDArray

from actstore.backbones.loading import Backbone
from actstore.compute.device import has_half, has_streams, is_accelerator
from actstore.compute.transfer import sent_ahead
from actstore.extraction.image_batches import Failures, ImageBatch, decode_batches
from actstore.images.decode import ImageFacts
from actstore.images.image_set import Loadable


@dataclass(frozen=True)
class ExtractionOptions:
    device: str = "auto"
    batch_size: int = 32
    workers: int | None = 1  # processes that decode, or threads in each worker of a cluster; None: by the device
    views: int = field(default=1, kw_only=True)  # of each image, averaged: its centre, or 10: see `Transform.views`


@dataclass(frozen=True)
class Wanted:
    """Items of a split from the batch that holds `first` on, for some layers, and how the store will keep them."""

    split: str
    items: Sequence[Loadable]
    first: int
    layers: Sequence[str]
    dtype: str
    chunk_rows: int


@dataclass(frozen=True)
class ExtractedBatch:
    """rows: layer -> (n, dim), and facts, of the items in `positions` (n,); failures: (position, reason) of others."""

    rows: dict[str, NDArray[Any]]
    positions: list[int]
    failures: Failures
    facts: list[ImageFacts]

    @property
    def end(self) -> int:
        """The position after the last item, read or not."""
        return max([*self.positions, *(position for position, _ in self.failures)]) + 1


def extract_here(
    backbone: Backbone, device: torch.device, options: ExtractionOptions, wanted: Wanted
) -> Iterator[ExtractedBatch]:
    """Batches of a split from this machine, in order: decoded in loader processes, run on one device."""
    decoders, pin = count_decoders(options.workers, device), has_streams(device)
    decoded = decode_batches(
        wanted.items, backbone.transform, options.batch_size, wanted.first, decoders, pin, options.views
    )
    return pass_through(backbone, device, decoded)


def pass_through(backbone: Backbone, device: torch.device, decoded: Iterable[ImageBatch]) -> Iterator[ExtractedBatch]:
    def send(batch: ImageBatch) -> ImageBatch:
        return replace(batch, images=batch.images.to(device, non_blocking=True))

    for batch in sent_ahead(decoded, send, lambda batch: [batch.images], device):
        rows = {layer: values.numpy() for layer, values in forward(backbone, batch, device).items()}
        yield ExtractedBatch(rows, batch.positions, batch.failures, batch.facts)


def forward(backbone: Backbone, batch: ImageBatch, device: torch.device) -> dict[str, torch.Tensor]:
    """(n, dim) float32 per layer, on the CPU: the mean over the views, which pass one after the other."""
    if not batch.positions:
        return {layer: torch.empty(0, dim) for layer, dim in backbone.layers.items()}
    sums: dict[str, torch.Tensor] = {}
    for view in batch.images.unbind(1):
        images = view.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
        with torch.inference_mode(), torch.autocast(device.type, torch.float16, enabled=has_half(device)):
            for layer, rows in backbone.activations(images).items():
                sums[layer] = rows.float() if layer not in sums else sums[layer] + rows.float()
    return {layer: (rows / batch.images.shape[1]).cpu() for layer, rows in sums.items()}


def move_to(device: torch.device, backbone: Backbone) -> None:
    backbone.module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def count_decoders(workers: int | None, device: torch.device) -> int:
    """How many decode at once: as asked for, else 1 beside a CPU and up to 8 beside a GPU."""
    if workers is not None:
        return workers
    return 1 if not is_accelerator(device) else min(8, os.cpu_count() or 1)

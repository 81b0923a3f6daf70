"""Images -> backbone -> rows, batch by batch, before they go into a store.

Images are decoded and transformed in loader workers, in batches whose borders never move: batch k holds items
k * size to (k + 1) * size - 1 whichever items are wanted. A network gives an image the very same activation only
inside of the same batch, and resumed builds must end byte-identical.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Barrier
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from actstore.backbones.loading import Backbone
from actstore.backbones.network import Transform
from actstore.compute.device import has_half, has_streams, is_accelerator, sent_ahead
from actstore.errors import UnreadableImageError
from actstore.images.decode import ImageFacts
from actstore.images.image_set import Loadable
from actstore.layout.columns import Column
from actstore.progress import note
from actstore.spec import Json
from actstore.writing.row_checks import parse_column

Failures = list[tuple[int, str]]


@dataclass(frozen=True)
class ImageBatch:
    """images (n, views, 3, crop, crop) and facts of the items in `positions` (n,); failures: (position, reason)."""

    images: Tensor
    positions: list[int]
    failures: Failures
    facts: list[ImageFacts]

    def pin_memory(self) -> ImageBatch:
        """As torch's loader asks for it: memory from which copies to a device run beside the host."""
        return replace(self, images=self.images.pin_memory())


def columns_of(facts: Sequence[ImageFacts]) -> dict[str, Column]:
    """What a build knows of its images beside their activations, as columns of the store."""
    numbers = {name: [getattr(fact, name) for fact in facts] for name in ("width", "height", "bytes")}
    columns = {name: parse_column(name, values, "int") for name, values in numbers.items()}
    return {**columns, "date": parse_column("date", [fact.date for fact in facts], "date")}


class _Batches(Dataset[ImageBatch]):
    def __init__(self, items: Sequence[Loadable], transform: Transform, size: int, views: int) -> None:
        self._items, self._transform, self._size, self._views = items, transform, size, views

    def __len__(self) -> int:
        return -(-len(self._items) // self._size)

    def __getitem__(self, number: int) -> ImageBatch:
        images, positions, failures, facts = [], [], [], []
        for position in range(number * self._size, min((number + 1) * self._size, len(self._items))):
            try:
                image, known = self._items[position].load_with_facts()
                images.append(self._transform.views(image, self._views))
                positions.append(position)
                facts.append(known)
            except UnreadableImageError as error:
                failures.append((position, str(error)))
        channels, crop = self._transform.channels, self._transform.crop
        stacked = torch.stack(images) if images else torch.empty(0, self._views, channels, crop, crop)
        return ImageBatch(stacked, positions, failures, facts)


def decode_batches(
    items: Sequence[Loadable],
    transform: Transform,
    size: int,
    first: int = 0,
    workers: int = 0,
    pin: bool = False,
    views: int = 1,
) -> Iterator[ImageBatch]:
    """Batches in order, from the one that holds item `first` on."""
    batches = _Batches(items, transform, size, views)
    wanted = range(first // size, len(batches))
    yield from DataLoader(
        batches,
        batch_size=None,
        sampler=wanted,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
        multiprocessing_context="spawn" if workers else None,
        worker_init_fn=_use_one_thread,
        pin_memory=pin,
    )


def decode_in_threads(
    items: Sequence[Loadable], transform: Transform, size: int, threads: int, views: int = 1
) -> Iterator[ImageBatch]:
    """The same batches, all of them, where no child process may be started: in a worker of a cluster."""
    batches = _Batches(items, transform, size, views)
    ahead: deque[Future[ImageBatch]] = deque()
    with _decoders(max(1, threads)) as pool:
        for number in range(len(batches)):
            ahead.append(pool.submit(batches.__getitem__, number))
            if len(ahead) > max(1, threads):
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _decoders(threads: int) -> ThreadPoolExecutor:
    """Threads that leave torch's own threads to the network.

    All have done so before this returns, and the caller's setting, which MKL takes for all threads, comes last.
    """
    before, ready = torch.get_num_threads(), Barrier(threads + 1)

    def begin() -> None:
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(threads, "decode", initializer=begin)
    for _ in range(threads):
        pool.submit(int)  # a thread starts with the first task that finds no idle one
    ready.wait()
    torch.set_num_threads(before)
    return pool


def _use_one_thread(worker: int) -> None:
    torch.set_num_threads(1)


@dataclass(frozen=True)
class BuildOptions:
    """How images become rows; a network of a given name and weights and these give the same bytes everywhere."""

    device: str = "auto"
    batch_size: int = 32
    workers: int | None = 1  # processes that decode, or threads in each worker of a cluster; None: by the device
    on_error: Literal["skip", "fail"] = "skip"
    restart: bool = False
    weights: str | None = None  # the file the backbone came from, so that a repair can load it again
    layout: Mapping[str, Any] = field(default_factory=dict)  # dtype, chunk_rows, codec, … of a new store
    random_weights: bool = False  # how the workers of a cluster are to load the backbone
    facts: Mapping[str, Json] = field(default_factory=dict)  # which a new store keeps beside its network
    views: int = field(default=1, kw_only=True)  # of each image, averaged: its centre, or 10: see `Transform.views`


@dataclass(frozen=True)
class ImageRange:
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
    backbone: Backbone, device: torch.device, options: BuildOptions, wanted: ImageRange
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


def is_guarded() -> bool:
    """Whether processes may be started from here: each imports the script that runs, which must not begin its work
    again. True in a notebook and at a prompt, where there is no script."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    try:
        return script is None or "__main__" in Path(script).read_text("utf-8", "replace")
    except OSError:
        return True


def count_decoders(workers: int | None, device: torch.device) -> int:
    """How many decode at once: as asked for, else 1 beside a CPU and up to 8 beside a GPU."""
    if not is_guarded():
        note("images are decoded in this process; for more speed put the script under `if __name__ == '__main__':`")
        return 0
    if workers is not None:
        return workers
    return 1 if not is_accelerator(device) else min(8, os.cpu_count() or 1)

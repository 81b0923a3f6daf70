"""Images decoded and transformed in loader workers, in batches whose borders never move.

Batch k holds items k * size to (k + 1) * size - 1 whichever items are wanted: a network gives an image
the very same activation only inside of the same batch, and resumed builds must end byte-identical.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from actstore.backbones.transform import Transform
from actstore.sources.decode import UnreadableImageError
from actstore.sources.items import Loadable

Failures = list[tuple[int, str]]


@dataclass(frozen=True)
class ImageBatch:
    """images (n, views, 3, crop, crop) of the items in `positions` (n,); failures: (position, reason) of others."""

    images: Tensor
    positions: list[int]
    failures: Failures


class _Batches(Dataset[ImageBatch]):
    def __init__(self, items: Sequence[Loadable], transform: Transform, size: int, views: int) -> None:
        self._items, self._transform, self._size, self._views = items, transform, size, views

    def __len__(self) -> int:
        return -(-len(self._items) // self._size)

    def __getitem__(self, number: int) -> ImageBatch:
        images, positions, failures = [], [], []
        for position in range(number * self._size, min((number + 1) * self._size, len(self._items))):
            try:
                images.append(self._transform.views(self._items[position].load(), self._views))
                positions.append(position)
            except UnreadableImageError as error:
                failures.append((position, str(error)))
        crop = self._transform.crop
        stacked = torch.stack(images) if images else torch.empty(0, self._views, 3, crop, crop)
        return ImageBatch(stacked, positions, failures)


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


def _use_one_thread(worker: int) -> None:
    torch.set_num_threads(1)

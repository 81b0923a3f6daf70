"""Images decoded and transformed in loader workers, in batches whose borders never move.

Batch k holds items k * size to (k + 1) * size - 1 whichever items are wanted: a network gives an image
the very same activation only inside of the same batch, and resumed builds must end byte-identical.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from actstore.backbones.transform import Transform
from actstore.errors import UnreadableImageError
from actstore.images.decode import ImageFacts
from actstore.images.image_set import Loadable
from actstore.layout.columns import Column
from actstore.writing.column_checks import parse_column

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
        crop = self._transform.crop
        stacked = torch.stack(images) if images else torch.empty(0, self._views, 3, crop, crop)
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

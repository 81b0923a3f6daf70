"""A split as a torch IterableDataset of ready batches, shared out among ranks and loader workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from actstore.compute.tensors import borrow
from actstore.errors import InvalidInputError
from actstore.streams.sampling import epoch_order

if TYPE_CHECKING:
    from actstore.split import Split


class RowDataset(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Yields (activations (b, dim), labels (b,)). Give it to DataLoader with batch_size=None.

    Every row comes once per pass over all ranks and workers together. With a seed the order is a
    pure function of (seed, epoch); call set_epoch before each pass.
    """

    def __init__(
        self, split: Split, batch_size: int, seed: int | None = None, rank: int = 0, world_size: int = 1
    ) -> None:
        if batch_size < 1:
            raise InvalidInputError(f"batch_size must be positive, got {batch_size}")
        self._split, self._batch_size, self._seed = split, batch_size, seed
        self._rank, self._world_size = rank, world_size
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        """Batches of this rank."""
        batches = -(-len(self._split) // self._batch_size)
        return len(range(self._rank, batches, self._world_size))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        count = len(self._split)
        order = np.arange(count) if self._seed is None else epoch_order(count, self._seed, self._epoch)
        batches = range(0, count, self._batch_size)[self._rank :: self._world_size][number::workers]
        for start in batches:
            rows = order[start : start + self._batch_size]
            labels = torch.from_numpy(self._split.labels[rows].astype(np.int64))
            yield borrow(self._split.rows.take(rows)), labels
            if self._seed is None:  # in order, no row comes again
                self._split.rows.release(int(rows[0]), int(rows[-1]) + 1)

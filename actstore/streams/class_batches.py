"""Training batches from a store: planned by sampling.py, gathered ahead of time on a thread; and a split as a torch
IterableDataset, shared out among ranks and loader workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from actstore.compute.device import Arrival, SideStream, empty_on_host, is_accelerator
from actstore.compute.tensors import borrow
from actstore.errors import InvalidInputError
from actstore.streams.sampling import BatchPlan, epoch_order, plan_batch, share

if TYPE_CHECKING:
    from actstore.split import Split


T = TypeVar("T")
Gather = Callable[[NDArray[np.int64]], torch.Tensor]  # row ids (n,) -> (n, dim) float32


@dataclass(frozen=True)
class Batch:
    """statistics and queries (n_class, dim) float32; targets (n_class,): query i belongs to category targets[i]."""

    step: int
    statistics: torch.Tensor
    queries: torch.Tensor
    targets: torch.Tensor
    plan: BatchPlan


class ClassBatches:
    """Training batches of one query and one statistic for each class, gathered ahead of time on a thread.

    Iterating gives the batches of steps start_step, start_step + 1, …; `batch(step)` gives a single one. Each batch is
    a function of the seed and the step. Unless the split is resident, memory stays small however large the store is.

    Args:
        split: where rows come from.
        classes: names or labels, by default every class that has rows.
        seed: of the draws.
        start_step: number of the first step.
        steps: how many steps there are, by default without end.
        p_mean: how often the statistic is the mean of the class.
        examples: at least and at most how many rows any other statistic is the mean of.
        rank: number of this process, where several share the classes of each batch.
        world_size: how many processes there are.
        prefetch: how many batches are gathered ahead.
        resident: hold the activations in memory, on the device.
        device: where the batches go.

    Examples:
        >>> batch = actstore.ClassBatches(train, seed=0).batch(0)
        >>> batch.statistics.shape, batch.targets
        (torch.Size([4, 8]), tensor([0, 1, 2, 3]))
    """

    def __init__(
        self,
        split: Split,
        *,
        classes: Sequence[str | int] | None = None,
        seed: int = 0,
        start_step: int = 0,
        steps: int | None = None,
        p_mean: float = 0.9,
        examples: tuple[int, int] = (1, 1),
        rank: int = 0,
        world_size: int = 1,
        prefetch: int = 2,
        resident: bool = False,
        device: str | torch.device = "cpu",
    ) -> None:
        if prefetch < 0:
            raise InvalidInputError(f"prefetch must not be negative, got {prefetch}")
        index = split.class_index
        self.labels = (
            np.flatnonzero(index.counts)
            if classes is None
            else np.array([index.position(name) for name in classes], np.int64)
        )
        self._index, self._seed, self._p_mean, self._examples = index, seed, p_mean, examples
        self._start, self._stop = start_step, None if steps is None else start_step + steps
        self._rank, self._world_size, self._prefetch = rank, world_size, prefetch
        self._device = torch.device(device)
        own = self.labels[share(len(self.labels), rank, world_size)]
        kept = None if world_size == 1 else own
        self._stream = SideStream(self._device)
        with self._stream.working():
            self._gather = _resident(split, self._device, kept) if resident else _streamed(split, self._device)
            self._means = torch.from_numpy(split.means()[own]).to(self._device)  # (own classes, dim)

    def batch(self, step: int) -> Batch:
        """Gather the batch of one step.

        Args:
            step: its number.

        Returns:
            `statistics` and `queries` (classes, dim) in float32, and `targets` (classes,): query i belongs to
            `targets[i]`.
        """
        batch, arrive = self._send(step)
        arrive()
        return batch

    def _send(self, step: int) -> tuple[Batch, Arrival]:
        """A batch under way to the device, by whichever thread, and what the thread that uses it calls first."""
        plan = plan_batch(self._index, self.labels, self._seed, step, self._p_mean, self._examples)
        plan = plan.shard(self._rank, self._world_size)
        drawn = np.flatnonzero(~plan.use_mean)
        shown = np.column_stack([plan.statistic_rows, plan.more_rows])[drawn]  # (drawn, most examples)
        is_used = np.arange(shown.shape[1]) <= plan.more[drawn, None]
        with self._stream.working():
            # one gather for both kinds of rows
            rows = self._gather(np.concatenate([plan.query_rows, shown[is_used]]))
            statistics = self._means.clone()
            places = torch.from_numpy(drawn).to(self._device)
            statistics[places] = _means_of(rows[len(plan.labels) :], is_used.sum(1))
            targets = torch.from_numpy(plan.targets).to(self._device)
            batch = Batch(step, statistics, rows[: len(plan.labels)], targets, plan)
            return batch, self._stream.arrival(batch.statistics, batch.queries, batch.targets)

    def __iter__(self) -> Iterator[Batch]:
        sent = map(self._send, count(self._start) if self._stop is None else range(self._start, self._stop))
        for batch, arrive in _prefetched(sent, self._prefetch) if self._prefetch else sent:
            arrive()
            yield batch
            del batch, arrive  # before the next one is gathered, into the same memory: fresh memory costs page faults


def _means_of(rows: torch.Tensor, counts: NDArray[np.int64]) -> torch.Tensor:
    """(n, dim) rows of groups that follow one another, (groups,) how many are in each -> (groups, dim)."""
    if len(rows) == len(counts):
        return rows
    group = torch.from_numpy(np.repeat(np.arange(len(counts)), counts)).to(rows.device)
    sums = torch.zeros(len(counts), rows.shape[1], device=rows.device).index_add_(0, group, rows)
    return sums / torch.from_numpy(counts).to(rows)[:, None]


def _streamed(split: Split, device: torch.device) -> Gather:
    # an accelerator is sent the rows as they are stored, half the bytes of fp16, and converts them itself
    dtype = getattr(torch, split.dtype.name) if is_accelerator(device) else torch.float32

    def gather(rows: NDArray[np.int64]) -> torch.Tensor:
        out = empty_on_host((len(rows), split.dim), dtype, device)
        for part, values in split.rows.pieces(rows):
            out[part].copy_(borrow(values))
        return out.to(device, non_blocking=True).float()

    return gather


def _resident(split: Split, device: torch.device, labels: NDArray[np.int64] | None) -> Gather:
    """labels: the classes whose rows are held; None: all."""
    own = None
    if labels is not None:
        index = split.class_index
        own = np.sort(np.concatenate([*(index.rows(label) for label in labels.tolist()), np.empty(0, np.int64)]))
    held = split.to_torch(own, device=str(device))

    def gather(rows: NDArray[np.int64]) -> torch.Tensor:
        places = rows if own is None else np.searchsorted(own, rows)
        return held.index_select(0, torch.from_numpy(places).to(device)).float()

    return gather


def _prefetched(batches: Iterator[T], ahead: int) -> Iterator[T]:
    """Draw from `batches` on a thread, at most `ahead` in advance."""
    # one core of it: the others belong to the trainer, whose thread keeps its own number
    pool = ThreadPoolExecutor(1, "actstore-prefetch", initializer=torch.set_num_threads, initargs=(1,))
    try:
        drawn = deque(pool.submit(next, batches, None) for _ in range(ahead))
        while (batch := drawn.popleft().result()) is not None:
            drawn.append(pool.submit(next, batches, None))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)


def endless_batches(split: Split, batch_size: int, seed: int, device: str) -> Iterator[torch.Tensor]:
    """(batch_size, dim) in float32. Rows that fill no batch at the end of a pass are left to the next."""
    if not 1 <= batch_size <= len(split):
        raise InvalidInputError(f"batch_size must be from 1 to the {len(split):,} rows there are, got {batch_size}")
    return (
        torch.from_numpy(split.take(order[start : start + batch_size], "f4")).to(device)
        for order in (epoch_order(len(split), seed, epoch) for epoch in count())
        for start in range(0, len(split) - batch_size + 1, batch_size)
    )


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
        total = len(self._split)
        order = np.arange(total) if self._seed is None else epoch_order(total, self._seed, self._epoch)
        batches = range(0, total, self._batch_size)[self._rank :: self._world_size][number::workers]
        for start in batches:
            rows = order[start : start + self._batch_size]
            labels = torch.from_numpy(self._split.labels[rows].astype(np.int64))
            yield borrow(self._split.rows.take(rows)), labels
            if self._seed is None:  # in order, no row comes again
                self._split.rows.release(int(rows[0]), int(rows[-1]) + 1)

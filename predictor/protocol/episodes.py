"""N-way K-shot tasks, measured: many tasks at a time, every method on the same ones.

Knows rows of numbers and methods that score them; where the rows come from (activations, pixels) is the caller's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import borrow, one_thread
from actstore.errors import InvalidInputError
from actstore.layout.class_index import ClassIndex
from actstore.split import Split
from predictor.protocol.method import EpisodeMethod, Method, require_scores
from predictor.protocol.outcome import auroc
from predictor.protocol.tasks import IGNORED, TaskBatch, TaskSize, longest_task, plan_tasks

# Of gathered queries, four 5-way tasks of 600 x 512 float32: up to 32 MB the allocator gives methods the same memory
# again and again, above it every temporary costs page faults (300 tasks: 2.6 s against 5.0 at 64 MB).
BATCH_BYTES = 24 << 20
PLANNED = 64  # tasks at a time
POOLED = ("train", "val", "test")  # of these, all that there are; the backbone saw no novel class in any of them
Progress = Callable[[int], Any]  # tasks done since the last call


@dataclass(frozen=True)
class Examples:
    """values: (rows, ...) activations, pixels or the like, grouped as `index` says; labels: those to draw from."""

    values: Tensor
    index: ClassIndex
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class EpisodeResult:
    """One method on one size of task. accuracies: (tasks,), 0 to 1. seconds: of its scores alone. aurocs: (tasks,) of
    known against unknown with half of a task's categories withheld, 0 to 1; None where the method looks at all of them
    together."""

    method: str
    size: TaskSize
    accuracies: NDArray[np.float64]
    seconds: float
    aurocs: NDArray[np.float64] | None = None

    @property
    def auroc(self) -> float | None:
        return None if self.aurocs is None else float(self.aurocs.mean())

    @property
    def accuracy(self) -> float:
        return float(self.accuracies.mean())

    @property
    def ci95(self) -> float:
        """Half the width of the 95% confidence interval of the mean over tasks."""
        if len(self.accuracies) < 2:
            return math.nan
        return 1.96 * float(self.accuracies.std(ddof=1)) / math.sqrt(len(self.accuracies))


def gather_classes(splits: Sequence[Split], names: Sequence[str]) -> Examples:
    """All rows of these classes in memory as float32, pooled over the splits; class k of the result is names[k]."""
    if other := [split for split in splits if split.dim != splits[0].dim]:
        raise InvalidInputError(f"rows of dim {splits[0].dim} and {other[0].dim} cannot be pooled; name other splits")
    groups: list[tuple[Split, NDArray[np.int64], int]] = []
    for label, name in enumerate(names):
        for split in splits:
            index = split.class_index
            groups.append((split, index.rows(index.position(name)), label))
    labels = np.repeat([label for _, _, label in groups], [len(rows) for _, rows, _ in groups])
    values = torch.empty(len(labels), splits[0].dim)
    first = 0
    with one_thread():
        for split, rows, _ in groups:
            for part, piece in split.rows.pieces(rows):  # few pages of the store stay mapped
                values[first + part.start : first + part.stop].copy_(borrow(piece))
            first += len(rows)
    return Examples(values, ClassIndex(names, labels), np.arange(len(names)))


def run_episodes(
    methods: Sequence[EpisodeMethod],
    examples: Examples,
    size: TaskSize,
    tasks: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[EpisodeResult]:
    """Tasks 0 to tasks - 1 of the seed by every method; memory is bounded by BATCH_BYTES and what methods take."""
    if tasks < 1:
        raise InvalidInputError(f"expected 1 task or more, got {tasks}")
    longest = longest_task(examples.index, examples.labels, size)
    predict = [_choose_way(method, examples.values, size, longest) for method in methods]
    accuracies, seconds = np.empty((len(methods), tasks)), np.zeros(len(methods))
    aurocs = np.full((len(methods), tasks), np.nan)
    # rows are scored at memory speed, which more threads do not raise; images are real work
    with torch.no_grad(), one_thread() if examples.values.ndim == 2 else nullcontext():
        for start in range(0, tasks, PLANNED):
            numbers = range(start, min(start + PLANNED, tasks))
            batch = plan_tasks(examples.index, examples.labels, size, seed, numbers)
            for place in range(len(methods)):
                began = time.perf_counter()
                predicted, familiar = predict[place](batch)
                seconds[place] += time.perf_counter() - began
                accuracies[place, start : numbers.stop] = task_accuracies(predicted, batch.targets)
                if familiar is not None:
                    aurocs[place, start : numbers.stop] = task_aurocs(familiar, batch.targets, size.way)
            if progress is not None:
                progress(len(numbers))
    return [
        EpisodeResult(
            getattr(method, "episode_name", None) or method.name,
            size,
            accuracies[place],
            float(seconds[place]),
            None if np.isnan(aurocs[place]).any() else aurocs[place],
        )
        for place, method in enumerate(methods)
    ]


def task_accuracies(predicted: NDArray[np.int64], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """(tasks, n) each -> (tasks,) share recognised."""
    asked = targets != IGNORED
    shares: NDArray[np.float64] = ((predicted == targets) & asked).sum(1) / asked.sum(1)
    return shares


def task_aurocs(familiar: NDArray[Any], targets: NDArray[np.int64], way: int) -> NDArray[np.float64]:
    """(tasks, n) each -> (tasks,): the first half of the categories is known, the others are not."""
    known = _known(way)
    return np.array([
        auroc(values[(wanted != IGNORED) & (wanted < known)], values[(wanted != IGNORED) & (wanted >= known)])
        for values, wanted in zip(familiar, targets, strict=True)
    ])  # fmt: skip


def _known(way: int) -> int:
    return (way + 1) // 2


# -> (tasks, n): the category of each query, and how familiar it is with half of the categories (None: not asked)
Predict = Callable[[TaskBatch], tuple[NDArray[np.int64], NDArray[np.float32] | None]]


def _choose_way(method: EpisodeMethod, values: Tensor, size: TaskSize, longest: int) -> Predict:
    """All rows at once where that is cheaper: two 512-d rows multiply in 15 ns, one is gathered and scaled in 1,150.

    A method that scores categories apart makes of many tasks one task of many ways. With all the rest as queries that
    spares gathering and normalising the same rows for every task: 1,000 tasks of 5 x 600 x 512 by class means took
    1.5 s of a core, not 3.5.
    """
    if isinstance(method, Method) and method.scores_categories_apart and longest * 75 > len(values) * size.way:
        return _OverAllRows(method, values, size)
    return _OverGathered(method, values, longest, size.way)


class _OverAllRows:
    """Scores every row for every task's categories, then looks at those that are asked about."""

    def __init__(self, method: Method, values: Tensor, size: TaskSize) -> None:
        self._method, self._values, self._known = method, values, _known(size.way)
        self._lengths = method.query_lengths(values)[:, None]  # (rows, 1)
        self._together = max(1, BATCH_BYTES // (len(values) * size.way * size.shots * 4))

    def __call__(self, batch: TaskBatch) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
        predicted, familiar = np.empty(batch.queries.shape, np.int64), np.empty(batch.queries.shape, np.float32)
        for start in range(0, len(predicted), self._together):
            part = slice(start, start + self._together)
            rows = torch.from_numpy(batch.support[part]).to(self._values.device)  # (tasks, way, shots)
            support = self._values[rows.flatten(0, 1)]  # (tasks * way, shots, dim)
            scores = self._method.episode_scores(support[None], self._values[None])[0]  # (rows, tasks * way)
            by_task = scores.view(len(scores), *rows.shape[:2])
            best = by_task.argmax(2).cpu().numpy()  # (rows, tasks)
            predicted[part] = np.take_along_axis(best.T, batch.queries[part], axis=1)
            highest = (by_task[..., : self._known].amax(2) / self._lengths).cpu().numpy()
            familiar[part] = np.take_along_axis(highest.T, batch.queries[part], axis=1)
        return predicted, familiar


class _OverGathered:
    """Gathers the queries of some tasks into a buffer that is used again: fresh memory costs more than the copy."""

    def __init__(self, method: EpisodeMethod, values: Tensor, longest: int, way: int) -> None:
        self._method, self._values, self._known = method, values, _known(way)
        self._apart = method if isinstance(method, Method) and method.scores_categories_apart else None
        self._together = max(1, BATCH_BYTES // (longest * values[:1].nbytes))
        self._buffer = values.new_empty((self._together * longest, *values.shape[1:]))

    def __call__(self, batch: TaskBatch) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
        predicted = np.empty(batch.queries.shape, np.int64)
        familiar = np.empty(batch.queries.shape, np.float32) if self._apart is not None else None
        for start in range(0, len(predicted), self._together):
            part = slice(start, start + self._together)
            support = self._values[torch.from_numpy(batch.support[part]).to(self._values.device)]
            queries = self._gather(batch.queries[part])
            scores = self._method.episode_scores(support, queries)
            expected = *queries.shape[:2], support.shape[1]
            require_scores(self._method, "episode_scores", scores, expected, "(tasks, n, way)")
            predicted[part] = scores.argmax(2).cpu().numpy()  # of equal scores the first category's
            if familiar is not None and self._apart is not None:
                lengths = self._apart.query_lengths(queries.flatten(0, 1)).view(queries.shape[:2])
                familiar[part] = (scores[..., : self._known].amax(2) / lengths).cpu().numpy()
        return predicted, familiar

    def _gather(self, rows: NDArray[np.int64]) -> Tensor:
        """(tasks, n) -> (tasks, n, *row shape)"""
        wanted = torch.from_numpy(rows.ravel()).to(self._values.device)
        gathered = self._buffer[: len(wanted)]
        torch.index_select(self._values, 0, wanted, out=gathered)
        return gathered.view(*rows.shape, *self._values.shape[1:])

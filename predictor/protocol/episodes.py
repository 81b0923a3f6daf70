"""N-way K-shot tasks: which rows are shown and which are asked about, and many tasks measured at a time.

Every method is measured on the same tasks: a task is a function of the class index, the sizes, the seed and the
task's number. A task with fewer shots has the same categories, and the first of the same examples. Where the rows come
from (activations, pixels) is the caller's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import borrow, one_thread
from actstore.errors import InvalidInputError
from actstore.layout.class_index import ClassIndex
from actstore.split import Split
from actstore.streams.sampling import Stream, generator
from predictor.protocol.method import EpisodeMethod, Method, require_scores
from predictor.protocol.outcome import auroc

# Of gathered queries, four 5-way tasks of 600 x 512 float32: up to 32 MB the allocator gives methods the same memory
# again and again, above it every temporary costs page faults (300 tasks: 2.6 s against 5.0 at 64 MB).
BATCH_BYTES = 24 << 20
PLANNED = 64  # tasks at a time
POOLED = ("train", "val", "test")  # of these, all that there are; the backbone saw no novel class in any of them
Progress = Callable[[int], Any]  # tasks done since the last call
IGNORED = -1  # the target of a place that is only there to make tasks equally long


@dataclass(frozen=True)
class TaskSize:
    """queries: of each category; None: all of its rows that are not shown."""

    way: int = 5
    shots: int = 1
    queries: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("way", 2), ("shots", 1), ("queries", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidInputError(f"a task needs {name} of {least} or more, got {value}")


@dataclass(frozen=True)
class Task:
    """labels: (way,) its categories. support: (way, shots) rows. queries: (n,) rows of category targets (n,)."""

    labels: NDArray[np.int64]
    support: NDArray[np.int64]
    queries: NDArray[np.int64]
    targets: NDArray[np.int64]


@dataclass(frozen=True)
class TaskBatch:
    """support: (tasks, way, shots) rows. queries and targets: (tasks, n); IGNORED where a task has fewer than n."""

    support: NDArray[np.int64]
    queries: NDArray[np.int64]
    targets: NDArray[np.int64]


def plan_task(index: ClassIndex, labels: NDArray[Any], size: TaskSize, seed: int, number: int) -> Task:
    """Categories drawn uniformly from `labels` without repetition, then rows of each; no row is in it twice.

    Queries come category by category; all the rest in the order of the rows, which is fastest to gather.
    """
    eligible = np.asarray(labels, np.int64)
    _refuse_too_few(index, eligible, size)
    counts, random = index.counts, generator(seed, number, Stream.TASKS)
    drawn = random.permutation(eligible)[: size.way]
    support = np.empty((size.way, size.shots), np.int64)
    queries = []
    for place, label in enumerate(drawn.tolist()):
        order = random.permutation(int(counts[label]))
        support[place] = order[: size.shots] + index.offsets[label]
        asked = np.sort(order[size.shots :]) if size.queries is None else order[size.shots :][: size.queries]
        queries.append(asked + index.offsets[label])
    targets = np.repeat(np.arange(size.way), [len(rows) for rows in queries])
    return Task(drawn, index.row_at(support), index.row_at(np.concatenate(queries)), targets)


def plan_tasks(index: ClassIndex, labels: NDArray[Any], size: TaskSize, seed: int, numbers: Sequence[int]) -> TaskBatch:
    """Several tasks as arrays. 1,000 of 5 x 600 rows take 0.2 s."""
    tasks = [plan_task(index, labels, size, seed, number) for number in numbers]
    longest = max((len(task.queries) for task in tasks), default=0)
    queries = np.zeros((len(tasks), longest), np.int64)
    targets = np.full((len(tasks), longest), IGNORED, np.int64)
    for place, task in enumerate(tasks):
        queries[place, : len(task.queries)] = task.queries
        targets[place, : len(task.targets)] = task.targets
    support = np.stack([task.support for task in tasks]) if tasks else np.empty((0, size.way, size.shots), np.int64)
    return TaskBatch(support, queries, targets)


def longest_task(index: ClassIndex, labels: NDArray[Any], size: TaskSize) -> int:
    """The most queries that any task has."""
    _refuse_too_few(index, np.asarray(labels, np.int64), size)
    if size.queries is not None:
        return size.way * size.queries
    return int(np.sort(index.counts[labels] - size.shots)[-size.way :].sum())


def _refuse_too_few(index: ClassIndex, labels: NDArray[np.int64], size: TaskSize) -> None:
    if len(labels) < size.way:
        raise InvalidInputError(f"{size.way}-way tasks need as many categories, got {len(labels)}; use a smaller way")
    needed = size.shots + (size.queries or 1)
    counts = index.counts[labels]
    if int(counts.min()) < needed:
        poor = int(labels[counts.argmin()])
        raise InvalidInputError(
            f"class {index.names[poor]!r} has {int(counts.min()):,} rows, too few for {size.shots} shots and "
            f"{size.queries or 'any'} queries; leave it out of the split"
            + ", or use fewer (--shots, --queries)"
            * (needed > 2)
        )


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
    known = (targets != IGNORED) & (targets < _known(way))
    unknown = (targets != IGNORED) & ~known
    tasks = zip(familiar, known, unknown, strict=True)
    return np.array([auroc(values[ours], values[other]) for values, ours, other in tasks])


def _known(way: int) -> int:
    return (way + 1) // 2


# -> (tasks, n): the category of each query, and how familiar it is with half of the categories (None: not asked)
Predicted = tuple[NDArray[np.int64], NDArray[np.float32] | None]
Predict = Callable[[TaskBatch], Predicted]


def _choose_way(method: EpisodeMethod, values: Tensor, size: TaskSize, longest: int) -> Predict:
    """All rows at once where that is cheaper: two 512-d rows multiply in 15 ns, one is gathered and scaled in 1,150.

    A method that scores categories apart makes of many tasks one task of many ways. With all the rest as queries that
    spares gathering and normalising the same rows for every task: 1,000 tasks of 5 x 600 x 512 by class means took
    1.5 s of a core, not 3.5. Else queries are gathered into a buffer that is used again: fresh memory costs more than
    the copy.
    """
    apart = method if isinstance(method, Method) and method.scores_categories_apart else None
    if apart is not None and longest * 75 > len(values) * size.way:
        return partial(_over_all_rows, apart, values, apart.query_lengths(values)[:, None])
    together = max(1, BATCH_BYTES // (longest * values[:1].nbytes))
    buffer = values.new_empty((together * longest, *values.shape[1:]))
    return partial(_over_gathered, method, apart, values, buffer, together)


def _over_all_rows(method: Method, values: Tensor, lengths: Tensor, batch: TaskBatch) -> Predicted:
    """Scores every row for every task's categories, then looks at those that are asked about. lengths: (rows, 1)."""
    predicted, familiar = np.empty(batch.queries.shape, np.int64), np.empty(batch.queries.shape, np.float32)
    _, way, shots = batch.support.shape
    together = max(1, BATCH_BYTES // (len(values) * way * shots * 4))
    for start in range(0, len(predicted), together):
        part = slice(start, start + together)
        rows = torch.from_numpy(batch.support[part]).to(values.device)  # (tasks, way, shots)
        scores = method.episode_scores(values[rows.flatten(0, 1)][None], values[None])[0]  # (rows, tasks * way)
        by_task = scores.view(len(scores), *rows.shape[:2])
        best = by_task.argmax(2).cpu().numpy()  # (rows, tasks)
        predicted[part] = np.take_along_axis(best.T, batch.queries[part], axis=1)
        highest = (by_task[..., : _known(way)].amax(2) / lengths).cpu().numpy()
        familiar[part] = np.take_along_axis(highest.T, batch.queries[part], axis=1)
    return predicted, familiar


def _over_gathered(
    method: EpisodeMethod, apart: Method | None, values: Tensor, buffer: Tensor, together: int, batch: TaskBatch
) -> Predicted:
    """So many tasks together. apart: the method, if it scores categories apart."""
    predicted = np.empty(batch.queries.shape, np.int64)
    familiar = None if apart is None else np.empty(batch.queries.shape, np.float32)
    for start in range(0, len(predicted), together):
        part = slice(start, start + together)
        support = values[torch.from_numpy(batch.support[part]).to(values.device)]
        wanted = torch.from_numpy(batch.queries[part].ravel()).to(values.device)
        gathered = torch.index_select(values, 0, wanted, out=buffer[: len(wanted)])
        queries = gathered.view(len(support), -1, *values.shape[1:])  # (tasks, n, …)
        given, expected = method.episode_scores(support, queries), (*queries.shape[:2], support.shape[1])
        scores = require_scores(method, "episode_scores", given, expected, "(tasks, n, way)")
        predicted[part] = scores.argmax(2).cpu().numpy()  # of equal scores the first category's
        if familiar is not None and apart is not None:
            lengths = apart.query_lengths(queries.flatten(0, 1)).view(queries.shape[:2])
            familiar[part] = (scores[..., : _known(support.shape[1])].amax(2) / lengths).cpu().numpy()
    return predicted, familiar


def without_poor(examples: Examples, least: int, way: int) -> tuple[Examples, str | None]:
    """The categories with at least so many rows, and a line that names the others, where enough remain for a task."""
    counts = examples.index.counts[examples.labels]
    poor = [examples.index.names[label] for label in examples.labels[counts < least].tolist()]
    if not poor or len(examples.labels) - len(poor) < way:
        return examples, None
    said = (f"WARNING: {len(poor):,} of {len(examples.labels):,} novel categories are in no task, as they have fewer "
            f"than {least:,} images, such as {poor[0]!r}")  # fmt: skip
    return replace(examples, labels=examples.labels[counts >= least]), said

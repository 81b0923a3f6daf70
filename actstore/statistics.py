"""Class statistics of a split: computed with dask in one pass, cached in the store, extended on append."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
import torch
from numpy.typing import NDArray

from actstore.chunkfile import chunk_path, write_chunk
from actstore.errors import ActstoreError
from actstore.hierarchy import create_raw_array, open_array, read_attributes, require_chunks
from actstore.moments import Moments, Sums, add_sums, choose_pivot, merge_moments, sum_rows, to_moments

if TYPE_CHECKING:
    from actstore.split import Split

NAMES = ("class_count", "class_mean", "class_var")
_PIVOT_ROWS = 256
_TASKS_PER_WORKER = 2  # few, since each has sums to zero and to add up
_SUMS_BYTES = 1 << 30
Progress = Callable[[int], None]


@dataclass(frozen=True)
class ClassStatistics:
    """count (n_class,), mean and variance (n_class, dim) in float64; NaN where a class has no rows.

    The variance is that of the rows at hand (divided by the count, not the count less one).
    """

    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


def class_statistics(split: Split, progress: Progress | None = None) -> ClassStatistics:
    """From the cache where it belongs to this very content, otherwise computed and cached.

    After an append only the new rows are read. `progress` is called with the number of rows done.
    """
    cached, rows = _load(split)
    if cached is not None and rows == len(split):
        return _dense(cached, len(split.classes), split.dim)
    moments = _compute(split, rows, progress)
    if cached is not None:
        moments = merge_moments(cached, moments)
    statistics = _dense(moments, len(split.classes), split.dim)
    _save(split, statistics)
    return statistics


def has_statistics(split: Split) -> bool:
    """Whether they are cached for this very content, so that asking for them costs nothing."""
    cached, covered = _load(split)
    return cached is not None and covered == len(split)


def _compute(split: Split, first: int, progress: Progress | None) -> Moments:
    """Moments of the rows from `first` on: dask tasks that sum a span of chunks each, and one that adds up."""
    sample = np.linspace(0, len(split) - 1, min(_PIVOT_ROWS, len(split))).astype(np.int64)
    pivot = choose_pivot(split.rows.take(sample))
    present = len(np.unique(split.labels[first:]))
    # A task holds up to 24 bytes per value of its classes' sums.
    workers = max(1, min(os.cpu_count() or 1, _SUMS_BYTES // (24 * split.dim * max(1, present))))
    spans = _spans(first, len(split), split.spec.chunk_rows, workers * _TASKS_PER_WORKER)
    parts = [dask.delayed(_sum_span, pure=True)(split, a, b, pivot, progress) for a, b in spans]
    # Each task on one thread: torch's own threads would only fight over the cores.
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        (sums,) = dask.compute(dask.delayed(add_sums)(parts), scheduler="threads", pool=pool)
    return to_moments(sums, pivot)


def _spans(first: int, last: int, chunk_rows: int, count: int) -> list[tuple[int, int]]:
    """At most `count` ranges of rows that begin and end at chunk borders wherever they can."""
    chunks = -(-last // chunk_rows) - first // chunk_rows
    step = max(1, -(-chunks // count)) * chunk_rows
    edges = [first, *range((first // chunk_rows) * chunk_rows + step, last, step), last]
    return list(pairwise(edges))


def _sum_span(split: Split, start: int, stop: int, pivot: NDArray[np.float32], progress: Progress | None) -> Sums:
    working = torch.float32 if split.dtype == np.float16 else torch.float64
    return sum_rows(_blocks(split, start, stop, progress), split.labels[start:stop], pivot, working)


def _blocks(split: Split, start: int, stop: int, progress: Progress | None) -> Iterator[NDArray[Any]]:
    chunk_rows = split.spec.chunk_rows
    while start < stop:
        edge = min(stop, (start // chunk_rows + 1) * chunk_rows)
        yield split.rows.read(start, edge)
        split.rows.release(start, edge)
        if progress is not None:
            progress(edge - start)
        start = edge


def _load(split: Split) -> tuple[Moments | None, int]:
    """Cached moments and how many rows they cover; they may lag behind by some appends."""
    covered = {content: rows for rows, content in split.committed.history}
    try:
        contents = {read_attributes(split.path / name).get("content") for name in NAMES}
        if len(contents) != 1 or (rows := covered.get(str(contents.pop()))) is None:
            return None, 0
        count, mean, variance = (_read(split.path / name) for name in NAMES)
    except (ActstoreError, ValueError):  # absent or damaged: compute anew
        return None, 0
    labels = np.flatnonzero(count)
    kept = count[labels]
    return Moments(labels, kept, mean[labels], variance[labels] * kept[:, None]), rows


def _read(path: Path) -> NDArray[Any]:
    array = open_array(path)
    require_chunks(path, [0] if array.size else [], array.ndim)
    return np.asarray(array[...])


def _save(split: Split, statistics: ClassStatistics) -> None:
    """Each array appears whole, with the hash it belongs to; on a read-only disk nothing is cached."""
    columns = (statistics.count, statistics.mean, statistics.variance)
    for name, values in zip(NAMES, columns, strict=True):
        fresh = split.path / f".{name}.{os.getpid()}"
        try:
            chunks = tuple(max(1, length) for length in values.shape)
            create_raw_array(fresh, values.shape, values.dtype.str[1:], chunks, {"content": split.content})
            if values.size:
                write_chunk(chunk_path(fresh, 0, values.ndim), values)
            shutil.rmtree(split.path / name, ignore_errors=True)
            fresh.rename(split.path / name)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            return


def _dense(moments: Moments, classes: int, dim: int) -> ClassStatistics:
    count = np.zeros(classes, np.int64)
    mean, variance = np.full((classes, dim), np.nan), np.full((classes, dim), np.nan)
    count[moments.labels] = moments.count
    mean[moments.labels] = moments.mean
    variance[moments.labels] = moments.m2 / moments.count[:, None]
    return ClassStatistics(count, mean, variance)

"""Class statistics of a split: computed with dask in one pass, cached in the store, extended on append."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
import torch
from numpy.typing import NDArray

from actstore.errors import ActstoreError
from actstore.hierarchy import create_raw_array, open_array, read_attributes
from actstore.moments import Moments, block_moments, merge_moments

if TYPE_CHECKING:
    from actstore.split import Split

_NAMES = ("class_count", "class_mean", "class_var")
_PIVOT_ROWS = 256
_FAN_IN = 8  # partial results merged at a time
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
    known = [cached] if cached is not None else []
    merged = merge_moments([*known, _empty(split.dim), *_compute(split, rows, progress)])
    _save(split, merged)
    return _dense(merged, len(split.classes), split.dim)


def _compute(split: Split, first: int, progress: Progress | None) -> list[Moments]:
    """Moments of the rows from `first` on, as a tree of dask tasks: a block each, then merges."""
    pivot = split.rows.read(0, min(_PIVOT_ROWS, len(split))).astype(np.float32).mean(axis=0)
    chunk = split.spec.chunk_rows
    edges = [first, *range((first // chunk + 1) * chunk, len(split), chunk), len(split)]
    spans = [(a, b) for a, b in pairwise(edges) if a < b]
    if not spans:
        return []
    _ = split.labels, split.rows  # opened once, here, not by every thread
    level = [dask.delayed(_span_moments, pure=True)(split, a, b, pivot, progress) for a, b in spans]
    while len(level) > 1:
        level = [dask.delayed(merge_moments)(level[i : i + _FAN_IN]) for i in range(0, len(level), _FAN_IN)]
    # One task per core, each on one thread: torch's own threads would only fight over the cores.
    with ThreadPoolExecutor(os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(dask.compute(*level, scheduler="threads", pool=pool))


def _span_moments(
    split: Split, start: int, stop: int, pivot: NDArray[np.float32], progress: Progress | None
) -> Moments:
    moments = block_moments(split.rows.read(start, stop), split.labels[start:stop], pivot)
    split.rows.release(start, stop)
    if progress is not None:
        progress(stop - start)
    return moments


def _load(split: Split) -> tuple[Moments | None, int]:
    """Cached moments and how many rows they cover; they may lag behind by some appends."""
    covered = {content: rows for rows, content in split.committed.history}
    try:
        contents = {read_attributes(split.path / name).get("content") for name in _NAMES}
        if len(contents) != 1 or (rows := covered.get(str(contents.pop()))) is None:
            return None, 0
        count, mean, variance = (np.asarray(open_array(split.path / name)[...]) for name in _NAMES)
    except (ActstoreError, ValueError):  # absent or damaged: compute anew
        return None, 0
    labels = np.flatnonzero(count)
    kept = count[labels]
    return Moments(labels, kept, mean[labels], variance[labels] * kept[:, None]), rows


def _save(split: Split, moments: Moments) -> None:
    """Each array appears whole, with the hash it belongs to; on a read-only disk nothing is cached."""
    dense = _dense(moments, len(split.classes), split.dim)
    for name, values in zip(_NAMES, (dense.count, dense.mean, dense.variance), strict=True):
        fresh = split.path / f".{name}.{os.getpid()}"
        try:
            chunks = (max(1, min(len(values), (8 << 20) // (8 * split.dim))), *values.shape[1:])
            array = create_raw_array(fresh, values.shape, values.dtype.str[1:], chunks, {"content": split.content})
            array[...] = values
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


def _empty(dim: int) -> Moments:
    none: NDArray[Any] = np.empty(0, np.int64)
    return Moments(none, none, np.empty((0, dim)), np.empty((0, dim)))

"""Class statistics of a split: computed with dask in one pass, cached in the store, extended on append."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from actstore.compute.cluster import Cluster
from actstore.compute.tensors import PIECE_ROWS, one_thread, pieces_as_float
from actstore.errors import ActstoreError
from actstore.layout.ledger import by_chunk, chunk_path
from actstore.layout.metadata import DIMENSIONS, RawLayout, covers, read_attributes, read_one_chunk, read_split_spec
from actstore.spec import SplitSpec
from actstore.statistics.moments import (
    SUMS_BYTES,
    Moments,
    Span,
    Sums,
    add_sums,
    choose_pivot,
    merge_moments,
    no_sums,
    plan_spans,
    sum_rows,
    to_moments,
)
from actstore.storage.atomic_file import crc32c
from actstore.storage.place import Place, write_chunk

if TYPE_CHECKING:
    from actstore.split import Split

NAMES = ("class_count", "class_mean", "class_var")
_PIVOT_ROWS = 256
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


def class_statistics(split: Split, progress: Progress | None = None, cluster: Cluster | None = None) -> ClassStatistics:
    """From the cache where it belongs to this very content, otherwise computed and cached.

    After an append only the new rows are read. `progress` is called with the number of rows done.
    cluster: its workers sum the rows; the bytes are the same.
    """
    rows = _covered(split)
    cached = _load(split) if rows else None
    if cached is not None and rows == len(split):  # classes may have been added since, without rows
        whole = len(cached.count) == len(split.classes)
        return cached if whole else _dense(_moments(cached), len(split.classes), split.dim)
    rows = rows if cached is not None else 0
    moments = _compute(split, rows, progress, cluster)
    if cached is not None:
        moments = merge_moments(_moments(cached), moments)
    statistics = _dense(moments, len(split.classes), split.dim)
    _save(split, statistics)
    return statistics


def has_statistics(split: Split) -> bool:
    """Whether they are cached for this very content, so that asking for them costs nothing."""
    return _covered(split) == len(split)


def class_means(split: Split, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """(classes, dim); the variances, as large again, are not read for it."""
    if has_statistics(split):
        with suppress(ActstoreError, ValueError):
            kept = _read(split.path / "class_mean")
            if len(kept) == len(split.classes):
                return kept.astype(dtype)
    return class_statistics(split).mean.astype(dtype)


def _compute(split: Split, first: int, progress: Progress | None, cluster: Cluster | None) -> Moments:
    """Moments of the rows from `first` on: tasks that sum a span of chunks each, added up in the order of rows."""
    sample = np.linspace(0, len(split) - 1, min(_PIVOT_ROWS, len(split))).astype(np.int64)
    pivot = choose_pivot(split.rows.take(sample))
    spans = list(plan_spans(split.labels, first, split.spec.chunk_rows, split.dim, split.dtype.itemsize))
    whole = no_sums(_present(split.labels[first:]), split.dim)
    if cluster is None:
        return to_moments(_sum_here(split, spans, pivot, whole, progress), pivot)
    shared = copy(split)
    shared.store_path = split.store_path.absolute()
    # Added up here and not by a task: with its worker all that was summed so far would be lost.
    for part, span in zip(
        cluster.map(f"sum-{split.name}", partial(_sum_span, shared, pivot), spans), spans, strict=True
    ):
        with one_thread():
            add_sums(whole, part)
        if progress is not None:
            progress(span.stop - span.start)
    return to_moments(whole, pivot)


def _sum_here(
    split: Split, spans: Sequence[Span], pivot: NDArray[np.float32], whole: Sums, progress: Progress | None
) -> Sums:
    """A chain of dask tasks, so that a part is added and let go of as soon as those before it are there."""
    import dask

    sums, sum_span = (
        dask.delayed(whole, traverse=False),
        dask.delayed(partial(_sum_span, split, pivot, progress=progress)),
    )
    for number, span in enumerate(spans):
        part = sum_span(span, dask_key_name=f"sum-{split.name}-{number}")
        sums = dask.delayed(add_sums)(sums, part, dask_key_name=f"add-{split.name}-{number}")
    # A task holds four more bytes per value and accumulator, and its part waits for those before it.
    largest = (SUMS_BYTES + 8) * split.dim * max((span.classes for span in spans), default=1)
    workers = max(1, min(os.cpu_count() or 1, _SUMS_BYTES // largest))
    # Each task on one thread: torch's own threads would only fight over the cores.
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        (found,) = dask.compute(sums, scheduler="threads", pool=pool)
    return cast(Sums, found)


def _present(labels: NDArray[np.int32]) -> NDArray[np.int64]:
    """The labels that occur, ascending; -1 is none."""
    return np.flatnonzero(np.bincount(labels + 1)[1:])


def _sum_span(split: Split, pivot: NDArray[np.float32], span: Span, progress: Progress | None = None) -> Sums:
    is_half = split.dtype == np.float16
    with one_thread():
        blocks = _blocks(split, span.start, span.stop, is_half, progress)
        pieces = map(torch.from_numpy, blocks) if is_half else pieces_as_float(blocks, torch.float64)
        working = torch.float32 if is_half else torch.float64
        return sum_rows(pieces, split.labels[span.start : span.stop], pivot, working)


def _blocks(split: Split, start: int, stop: int, in_float32: bool, progress: Progress | None) -> Iterator[NDArray[Any]]:
    """in_float32: converted by the reader, which checks rows in the same pass; into memory used again by the next."""
    into = np.empty((min(PIECE_ROWS, stop - start), split.dim), np.float32) if in_float32 else None
    for _, first, last in by_chunk(start, stop, split.spec.chunk_rows):
        yield from split.rows.scan(first, last, PIECE_ROWS, into)
        split.rows.release(first, last)
        if progress is not None:
            progress(last - first)


def _covered(split: Split, committed: SplitSpec | None = None) -> int:
    """How many rows the kept statistics are of; they may lag behind by some appends, and 0 is none.

    committed: what is known of the split, where that is not what it was opened with.
    """
    rows_of = {content: rows for rows, content in (committed or split.committed).history}
    try:
        contents = {read_attributes(split.path / name).get("content") for name in NAMES}
    except (ActstoreError, ValueError):
        return 0
    return rows_of.get(str(contents.pop()), 0) if len(contents) == 1 else 0


def _load(split: Split) -> ClassStatistics | None:
    try:
        return ClassStatistics(*(_read(split.path / name) for name in NAMES))
    except (ActstoreError, ValueError):  # damaged: compute anew
        return None


def _moments(known: ClassStatistics) -> Moments:
    labels = np.flatnonzero(known.count)
    kept = known.count[labels]
    return Moments(labels, kept, known.mean[labels], known.variance[labels] * kept[:, None])


def _read(path: Place) -> NDArray[Any]:
    """A kept array. In a bucket its chunk and its metadata are written one after the other: the crc joins them."""
    values = read_one_chunk(path)
    if read_attributes(path).get("crc", found := crc32c(values)) != found:
        raise ValueError(f"{path} is not the array that its metadata describes")
    return values


def _save(split: Split, statistics: ClassStatistics) -> None:
    """Each array appears with the hash it belongs to, or not at all; on a read-only disk nothing is cached, and nothing
    where the split was replaced since it was opened, or statistics of more rows are kept by now."""
    with suppress(ActstoreError):
        now = read_split_spec(split.path)
        if not covers(now, split.committed) or _covered(split, now) > len(split):
            return
    columns = (statistics.count, statistics.mean, statistics.variance)
    for name, values in zip(NAMES, columns, strict=True):
        try:
            _replace(split.path / name, values, split.content)
        except OSError:
            return


def _replace(place: Place, values: NDArray[Any], content: str) -> None:
    from actstore.layout.zarr_arrays import create_raw_array

    with place.replacing() as fresh:
        # the chunk first: what a reader finds with a zarr.json is whole
        if values.size:
            write_chunk(chunk_path(fresh, 0, values.ndim), values)
        chunks = tuple(max(1, length) for length in values.shape)
        facts, fill = {"content": content, "crc": crc32c(values)}, float("nan") if values.dtype.kind == "f" else 0
        layout = RawLayout(values.dtype.str[1:], chunks, DIMENSIONS[place.name], fill, facts)
        create_raw_array(fresh, layout, values.shape)


def _dense(moments: Moments, classes: int, dim: int) -> ClassStatistics:
    """In the memory of the moments, where every class has rows."""
    spread = np.divide(moments.m2, moments.count[:, None], out=moments.m2)
    if len(moments.labels) == classes:
        return ClassStatistics(moments.count, moments.mean, spread)
    count = np.zeros(classes, np.int64)
    mean, variance = np.full((classes, dim), np.nan), np.full((classes, dim), np.nan)
    count[moments.labels] = moments.count
    mean[moments.labels] = moments.mean
    variance[moments.labels] = spread
    return ClassStatistics(count, mean, variance)

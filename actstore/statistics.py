"""Count, mean and variance of every class of a split: summed with dask in one pass, kept in the store under the hash of
its content, extended on append.

Floating-point sums depend on their order. Rows are summed over spans, which are a function of the labels and not of how
many work on them, and added up in order: so means have the same bytes on one thread, on many workers, and after one of
them was lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
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
from actstore.layout.metadata import (
    DIMENSIONS,
    RawLayout,
    covers,
    create_raw_array,
    read_attributes,
    read_one_chunk,
    read_split_spec,
)
from actstore.progress import Progress
from actstore.spec import SplitSpec
from actstore.storage.atomic_file import crc32c, sync_directory
from actstore.storage.place import Place, write_chunk

if TYPE_CHECKING:
    from actstore.split import Split

__all__ = ["has_statistics"]

NAMES = ("class_count", "class_mean", "class_var")
_PIVOT_ROWS = 256
_SUMS_BYTES = 1 << 30
_MOVED = 1024  # classes at a time: copies of all 21,000 of ImageNet-21k would take half a gigabyte
_ROW_SUMS = 16  # bytes per value: two float64 sums
_RATIO = 8  # rows are so many times larger than their sums, which have to be zeroed, sent and added
_LEAST_BYTES = 64 << 20
_FLUSH_ROWS = 1024  # float32 sums run over about this many rows of a class at most


@dataclass(frozen=True)
class Sums:
    """Of the classes that occur in some rows: labels (k,) ascending, count (k,), and in float64 the sums
    of (row - pivot) and of its square, (2, k, dim)."""

    labels: NDArray[np.int64]
    count: NDArray[np.int64]
    sums: torch.Tensor

    def add(self, part: Sums) -> Sums:
        """Add in place a part whose labels are among its own."""
        at = np.searchsorted(self.labels, part.labels)
        self.count[at] += part.count
        for mine, theirs in zip(self.sums, part.sums, strict=True):
            mine.index_add_(0, torch.from_numpy(at), theirs)
        return self


@dataclass(frozen=True)
class Moments:
    """labels (k,) ascending, count (k,), mean and m2 (k, dim), the sum of squared deviations from the mean."""

    labels: NDArray[np.int64]
    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """Rows [start, stop), and how many classes they have."""

    start: int
    stop: int
    classes: int


def plan_spans(labels: NDArray[Any], first: int, chunk_rows: int, dim: int, itemsize: int) -> Iterator[Span]:
    """The rows from `first` on in order; borders lie between chunks."""
    seen = np.zeros(int(labels.max(initial=-1)) + 2, bool)  # by label + 1: -1 is unlabelled
    start = first
    for _, begin, end in by_chunk(first, len(labels), chunk_rows):
        seen[labels[begin:end] + 1] = True
        classes = int(np.count_nonzero(seen))
        bytes_each = (end - start) * itemsize  # of each feature
        enough = bytes_each >= _RATIO * _ROW_SUMS * classes and bytes_each * dim >= _LEAST_BYTES
        if enough or end == len(labels):
            yield Span(start, end, classes)
            start, seen[:] = end, False


def sum_rows(
    pieces: Iterable[torch.Tensor],
    labels: NDArray[Any],
    pivot: NDArray[np.float32],
    working: torch.dtype = torch.float32,
) -> Sums:
    """One pass over consecutive pieces of rows, whose labels are given; unlabelled rows are left out.

    pieces: (n, dim) of `working` precision, a few hundred rows each; what is in them is overwritten.
    Rows are shifted by `pivot` (dim,), see choose_pivot. Sums run in `working` precision and
    move to float64 in time.
    """
    present, local = np.unique(labels, return_inverse=True)
    index, shift = torch.from_numpy(local), torch.from_numpy(pivot).to(working)
    # sums of rows and of their squares: that of an fp16 value fits float32 with room to spare, of an fp32 value not
    near, far = (torch.zeros(2, len(present), len(pivot), dtype=kind) for kind in (working, torch.float64))
    done = flushed = 0
    for piece in pieces:
        classes = index[done : done + len(piece)]
        near[0].index_add_(0, classes, piece.sub_(shift))
        near[1].index_add_(0, classes, piece.square_())
        done += len(piece)
        touched = np.flatnonzero(np.bincount(local[flushed:done]))
        # Long enough that moving sums costs less than adding rows, short enough for float32.
        if done == len(labels) or done - flushed >= max(_FLUSH_ROWS, 16 * len(touched)):
            for begin in range(0, len(touched), _MOVED):
                some = torch.from_numpy(touched[begin : begin + _MOVED])
                for mine, theirs in zip(near, far, strict=True):
                    theirs.index_add_(0, some, mine.index_select(0, some).double())
                    mine.index_fill_(0, some, 0)
            flushed = done
    first = int(np.searchsorted(present, 0))  # -1, unlabelled, comes before all classes
    count = np.bincount(local, minlength=len(present)).astype(np.int64)
    return Sums(present[first:].astype(np.int64), count[first:], far[:, first:])


def choose_pivot(sample: NDArray[Any]) -> NDArray[np.float32]:
    """(n, dim) rows -> (dim,) shift: the mean of features that lie far from zero for their spread, else 0.

    Without the shift their variance would drown in rounding; for others a shift would only add rounding.
    """
    if not len(sample):
        return np.zeros(sample.shape[1], np.float32)
    wide = sample.astype(np.float64)
    mean = wide.mean(axis=0)
    return np.where(np.abs(mean) > 5 * wide.std(axis=0), mean, 0).astype(np.float32)


def to_moments(sums: Sums, pivot: NDArray[np.float32]) -> Moments:
    """In the memory of the sums, which are gone afterwards."""
    shift, counts = torch.from_numpy(pivot), torch.from_numpy(sums.count)[:, None]
    for start in range(0, len(counts), _MOVED):
        part = slice(start, start + _MOVED)
        total, squares = sums.sums[:, part]
        shifted = total / counts[part]
        squares.addcmul_(total, shifted, value=-1).clamp_(min=0)
        torch.add(shifted, shift, out=total)
    return Moments(sums.labels, sums.count, *sums.sums.numpy())


def merge_moments(a: Moments, b: Moments) -> Moments:
    """As if the rows of both had been one set (Chan, Golub & LeVeque 1979)."""
    labels = np.union1d(a.labels, b.labels)
    count = np.zeros(len(labels), np.int64)
    mean, m2 = np.zeros((len(labels), a.mean.shape[1])), np.zeros((len(labels), a.mean.shape[1]))
    for part in (a, b):
        at = np.searchsorted(labels, part.labels)
        both = count[at] + part.count
        delta = part.mean - mean[at]
        share = (part.count / both)[:, None]
        m2[at] += part.m2 + delta**2 * share * count[at][:, None]
        mean[at] += delta * share
        count[at] = both
    return Moments(labels, count, mean, m2)


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
    cached = _load(split, rows) if rows else None
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
            kept = _read(split.path / "class_mean", split.content)
            if len(kept) == len(split.classes):
                return kept.astype(dtype)
    return class_statistics(split).mean.astype(dtype)


def _compute(split: Split, first: int, progress: Progress | None, cluster: Cluster | None) -> Moments:
    """Moments of the rows from `first` on: tasks that sum a span of chunks each, added up in the order of rows."""
    sample = np.linspace(0, len(split) - 1, min(_PIVOT_ROWS, len(split))).astype(np.int64)
    pivot = choose_pivot(split.rows.take(sample))
    spans = list(plan_spans(split.labels, first, split.spec.chunk_rows, split.dim, split.dtype.itemsize))
    present = np.flatnonzero(np.bincount(split.labels[first:] + 1)[1:])  # -1 is none
    whole = Sums(
        present, np.zeros(len(present), np.int64), torch.zeros(2, len(present), split.dim, dtype=torch.float64)
    )
    if cluster is None:
        return to_moments(_sum_here(split, spans, pivot, whole, progress), pivot)
    shared = copy(split)
    shared.store_path = split.store_path.absolute()
    # Added up here and not by a task: with its worker all that was summed so far would be lost.
    for part, span in zip(
        cluster.map(f"sum-{split.name}", partial(_sum_span, shared, pivot), spans), spans, strict=True
    ):
        with one_thread():
            whole.add(part)
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
        sums = dask.delayed(Sums.add)(sums, part, dask_key_name=f"add-{split.name}-{number}")
    # A task holds four more bytes per value and accumulator, and its part waits for those before it.
    largest = (_ROW_SUMS + 8) * split.dim * max((span.classes for span in spans), default=1)
    workers = max(1, min(os.cpu_count() or 1, _SUMS_BYTES // largest))
    # Each task on one thread: torch's own threads would only fight over the cores.
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        (found,) = dask.compute(sums, scheduler="threads", pool=pool)
    return cast(Sums, found)


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


def _load(split: Split, rows: int) -> ClassStatistics | None:
    """Those of the first rows of a split."""
    content = next((content for covered, content in split.committed.history if covered == rows), None)
    if content is None:
        return None
    try:
        return ClassStatistics(*(_read(split.path / name, content) for name in NAMES))
    except (ActstoreError, ValueError):  # damaged, or replaced meanwhile: compute anew
        return None


def _moments(known: ClassStatistics) -> Moments:
    labels = np.flatnonzero(known.count)
    kept = known.count[labels]
    return Moments(labels, kept, known.mean[labels], known.variance[labels] * kept[:, None])


def _read(path: Place, content: str) -> NDArray[Any]:
    """A kept array of this content. Its metadata goes before its chunk is replaced, and so is read after the chunk."""
    values, facts = read_one_chunk(path), read_attributes(path)
    # of two who replace it at once, one may have written the chunk and one the metadata: the crc joins them
    if facts.get("content") != content or facts.get("crc", found := crc32c(values)) != found:
        raise ValueError(f"{path} is not the array that its metadata describes")
    return values


def _save(split: Split, statistics: ClassStatistics) -> None:
    """Each array appears with the hash it belongs to, or not at all; on a read-only disk nothing is cached, and nothing
    where the split was replaced since it was opened, or as good statistics, or those of more rows, are kept by now."""
    with suppress(ActstoreError, OSError), split.store_path.changing():  # neither replaced nor written to by another
        now = read_split_spec(split.path)
        kept = _covered(split, now)
        if not covers(now, split.committed) or kept > len(split):
            return
        if kept == len(split) and _load(split, kept) is not None:
            return
        columns = (statistics.count, statistics.mean, statistics.variance)
        for name, values in zip(NAMES, columns, strict=True):
            _replace(split.path / name, values, split.content)


def _replace(place: Place, values: NDArray[Any], content: str) -> None:
    """Metadata is removed first and written last: without it there is nothing. A full disk in between loses what was
    kept, and it is computed anew."""
    with suppress(FileNotFoundError):
        (place / "zarr.json").unlink()
        if place.local_path is not None:
            sync_directory(place.local_path)  # it must not come back beside another chunk
    if values.size:
        write_chunk(chunk_path(place, 0, values.ndim), values)
    chunks = tuple(max(1, length) for length in values.shape)
    facts, fill = {"content": content, "crc": crc32c(values)}, float("nan") if values.dtype.kind == "f" else 0
    layout = RawLayout(values.dtype.str[1:], chunks, DIMENSIONS[place.name], fill, facts)
    create_raw_array(place, layout, values.shape)


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

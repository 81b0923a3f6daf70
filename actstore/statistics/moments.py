"""Count, mean and squared deviations per class: summed over spans of rows, merged in float64.

Floating-point sums depend on their order. Spans are a function of the labels, and not of how many work on them, so
means have the same bytes on one thread, on many workers, and after one of them was lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.layout.ledger import by_chunk

_MOVED = 1024  # classes at a time: copies of all 21,000 of ImageNet-21k would take half a gigabyte
SUMS_BYTES = 16  # per value: two float64 sums
_RATIO = 8  # rows are so many times larger than their sums, which have to be zeroed, sent and added
_LEAST_BYTES = 64 << 20
_FLUSH_ROWS = 1024  # float32 sums run over about this many rows of a class at most


@dataclass(frozen=True)
class Sums:
    """Of the classes that occur in some rows: labels (k,) ascending, count (k,), and in float64 the sums
    of (row - pivot) and of its square, (k, dim)."""

    labels: NDArray[np.int64]
    count: NDArray[np.int64]
    total: torch.Tensor
    squares: torch.Tensor


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
        enough = bytes_each >= _RATIO * SUMS_BYTES * classes and bytes_each * dim >= _LEAST_BYTES
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
    # A square of an fp16 value fits float32 with room to spare, one of an fp32 value does not.
    near = _Accumulator(len(present), len(pivot), working)
    far = _Accumulator(len(present), len(pivot))
    done = flushed = 0
    for piece in pieces:
        near.add(index[done : done + len(piece)], piece.sub_(shift))
        done += len(piece)
        touched = np.flatnonzero(np.bincount(local[flushed:done]))
        # Long enough that moving sums costs less than adding rows, short enough for float32.
        if done == len(labels) or done - flushed >= max(_FLUSH_ROWS, 16 * len(touched)):
            near.move_to(far, torch.from_numpy(touched))
            flushed = done
    first = int(np.searchsorted(present, 0))  # -1, unlabelled, comes before all classes
    count = np.bincount(local, minlength=len(present)).astype(np.int64)
    return Sums(present[first:].astype(np.int64), count[first:], far.total[first:], far.squares[first:])


class _Accumulator:
    """Sums of rows and of their squares by class, (classes, dim)."""

    def __init__(self, classes: int, dim: int, dtype: torch.dtype = torch.float64) -> None:
        self.total = torch.zeros((classes, dim), dtype=dtype)
        self.squares = torch.zeros((classes, dim), dtype=dtype)

    def add(self, classes: torch.Tensor, rows: torch.Tensor) -> None:
        """Squares the rows in place."""
        self.total.index_add_(0, classes, rows)
        self.squares.index_add_(0, classes, rows.square_())

    def move_to(self, other: _Accumulator, classes: torch.Tensor) -> None:
        """Hand over the sums of some classes and start them again at zero."""
        for start in range(0, len(classes), _MOVED):
            some = classes[start : start + _MOVED]
            for mine, theirs in ((self.total, other.total), (self.squares, other.squares)):
                theirs.index_add_(0, some, mine.index_select(0, some).double())
                mine.index_fill_(0, some, 0)


def choose_pivot(sample: NDArray[Any]) -> NDArray[np.float32]:
    """(n, dim) rows -> (dim,) shift: the mean of features that lie far from zero for their spread, else 0.

    Without the shift their variance would drown in rounding; for others a shift would only add rounding.
    """
    if not len(sample):
        return np.zeros(sample.shape[1], np.float32)
    wide = sample.astype(np.float64)
    mean = wide.mean(axis=0)
    return np.where(np.abs(mean) > 5 * wide.std(axis=0), mean, 0).astype(np.float32)


def no_sums(labels: NDArray[np.int64], dim: int) -> Sums:
    """Of no rows, to add to."""
    zeros = _Accumulator(len(labels), dim)
    return Sums(labels, np.zeros(len(labels), np.int64), zeros.total, zeros.squares)


def add_sums(whole: Sums, part: Sums) -> Sums:
    """Add to `whole`, in place, a part whose labels are among its own."""
    at = np.searchsorted(whole.labels, part.labels)
    whole.count[at] += part.count
    whole.total.index_add_(0, torch.from_numpy(at), part.total)
    whole.squares.index_add_(0, torch.from_numpy(at), part.squares)
    return whole


def to_moments(sums: Sums, pivot: NDArray[np.float32]) -> Moments:
    """In the memory of the sums, which are gone afterwards."""
    shift, counts = torch.from_numpy(pivot), torch.from_numpy(sums.count)[:, None]
    for start in range(0, len(counts), _MOVED):
        part = slice(start, start + _MOVED)
        total, squares = sums.total[part], sums.squares[part]
        shifted = total / counts[part]
        squares.addcmul_(total, shifted, value=-1).clamp_(min=0)
        torch.add(shifted, shift, out=total)
    return Moments(sums.labels, sums.count, sums.total.numpy(), sums.squares.numpy())


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

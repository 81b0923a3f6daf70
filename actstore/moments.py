"""Count, mean and squared deviations per class: summed over spans of rows, merged in float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.tensors import pieces_as_float32

_FLUSH_ROWS = 8192  # float32 sums never run over more rows of a class than about this


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


def sum_rows(blocks: Iterable[NDArray[Any]], labels: NDArray[Any], pivot: NDArray[np.float32]) -> Sums:
    """One pass over consecutive blocks of rows whose labels are given; unlabelled rows are left out.

    Rows are shifted by `pivot` (dim,), about the mean of all rows: without the shift a variance far
    below the squared mean would drown in rounding. Sums run in float32 and move to float64 in time.
    """
    present, local = np.unique(labels, return_inverse=True)
    index, shift = torch.from_numpy(local), torch.from_numpy(pivot)
    shape = (len(present), len(pivot))
    near, near_squares = torch.zeros(shape), torch.zeros(shape)
    far, far_squares = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    flush_rows = max(_FLUSH_ROWS, 16 * len(present))  # so that flushing stays cheaper than summing
    done = flushed = 0
    for block in blocks:
        for _, piece in pieces_as_float32(block):
            rows = index[done : done + len(piece)]
            near.index_add_(0, rows, piece.sub_(shift))
            near_squares.index_add_(0, rows, piece.square_())
            done += len(piece)
            if done - flushed >= flush_rows or done == len(labels):
                far.add_(near)
                far_squares.add_(near_squares)
                near.zero_()
                near_squares.zero_()
                flushed = done
    first = int(np.searchsorted(present, 0))  # -1, unlabelled, comes before all classes
    count = np.bincount(local, minlength=len(present)).astype(np.int64)
    return Sums(present[first:].astype(np.int64), count[first:], far[first:], far_squares[first:])


def add_sums(parts: Sequence[Sums]) -> Sums:
    """The sums over all rows of the parts."""
    labels = np.unique(np.concatenate([part.labels for part in parts]))
    shape = (len(labels), parts[0].total.shape[1])
    count = np.zeros(len(labels), np.int64)
    total, squares = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)
    for part in parts:
        at = np.searchsorted(labels, part.labels)
        count[at] += part.count
        total.index_add_(0, torch.from_numpy(at), part.total)
        squares.index_add_(0, torch.from_numpy(at), part.squares)
    return Sums(labels, count, total, squares)


def to_moments(sums: Sums, pivot: NDArray[np.float32]) -> Moments:
    count = torch.from_numpy(sums.count)[:, None]
    shifted = sums.total / count
    m2 = sums.squares.addcmul(sums.total, shifted, value=-1).clamp_(min=0)
    return Moments(sums.labels, sums.count, shifted.add_(torch.from_numpy(pivot)).numpy(), m2.numpy())


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

"""Count, mean and squared deviations per class: of a block of rows, and merged exactly in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.tensors import pieces_as_float32


@dataclass(frozen=True)
class Moments:
    """Of the classes that occur: labels (k,) ascending, count (k,), mean and m2 (k, dim).

    m2 is the sum of squared deviations from the mean; it merges without cancellation.
    """

    labels: NDArray[np.int64]
    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]


def block_moments(values: NDArray[Any], labels: NDArray[Any], pivot: NDArray[np.float32]) -> Moments:
    """One pass over (n, dim) rows; unlabelled rows are left out.

    Sums run in float32 over at most a block, of values shifted by `pivot` (dim,), about the mean of
    all rows: without the shift a variance far below the squared mean would drown in rounding.
    """
    present, local = np.unique(labels, return_inverse=True)
    first = int(np.searchsorted(present, 0))  # where labelled classes begin
    shape = (len(present), values.shape[1])
    total, squares, shift = torch.zeros(shape), torch.zeros(shape), torch.from_numpy(pivot)
    index = torch.from_numpy(local)
    for start, piece in pieces_as_float32(values):
        rows = index[start : start + len(piece)]
        piece.sub_(shift)
        total.index_add_(0, rows, piece)
        piece.square_()
        squares.index_add_(0, rows, piece)
    count = np.bincount(local, minlength=len(present)).astype(np.int64)[first:]
    mean = total.double().numpy()[first:] / count[:, None]  # (k, dim), still shifted
    m2 = squares.double().numpy()[first:] - mean**2 * count[:, None]
    return Moments(present[first:].astype(np.int64), count, mean + pivot, np.maximum(m2, 0))


def merge_moments(parts: Sequence[Moments]) -> Moments:
    """As if all rows had been one block (Chan, Golub & LeVeque 1979)."""
    labels = np.unique(np.concatenate([part.labels for part in parts]))
    dim = parts[0].mean.shape[1]
    count = np.zeros(len(labels), np.int64)
    mean, m2 = np.zeros((len(labels), dim)), np.zeros((len(labels), dim))
    for part in parts:
        at = np.searchsorted(labels, part.labels)
        both = count[at] + part.count
        delta = part.mean - mean[at]
        share = (part.count / both)[:, None]
        m2[at] += part.m2 + delta**2 * share * count[at][:, None]
        mean[at] += delta * share
        count[at] = both
    return Moments(labels, count, mean, m2)

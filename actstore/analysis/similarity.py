"""How alike two representations of the same rows are: plain arithmetic in float64, no I/O.

CKA (linear)    Kornblith et al. 2019: |Cxy|^2 / (|Cxx| |Cyy|), C being covariances and |.| the Frobenius norm
Procrustes      |Cxy|* / sqrt(tr Cxx tr Cyy), |.|* being the sum of singular values: 1 less half of the squared distance
                between both, centred and of size one, after the best rotation (Ding et al. 2021, Williams et al. 2021)
RSA             Kriegeskorte et al. 2008: correlation of the distances between all pairs of rows
mutual k-NN     Huh et al. 2024: the share of its k nearest rows that a row has in both
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Distance = Literal["correlation", "cosine", "euclidean"]
_EQUAL = 1e-10  # of the largest distance: nearer ones are ties, which rounding would order at random


@dataclass(frozen=True)
class Linear:
    """A similarity, and what each of some rows adds to it: its influence (n,), to first order and of mean about 0."""

    value: float
    influence: Floats


def linear_cka(cross: Tensor, one: Tensor, other: Tensor, rows: Tensor, other_rows: Tensor) -> Linear:
    """cross, one, other: covariances between both and within each. rows, other_rows (n, dim): some centred rows.

    NaN where one of them is constant.
    """
    squares = [float(c.square().sum()) for c in (cross, one, other)]
    if not squares[1] or not squares[2]:
        return Linear(float("nan"), np.full(len(rows), np.nan))
    value = squares[0] / np.sqrt(squares[1] * squares[2])
    parts = [
        2 * (_quadratic(left, c, right) - square)
        for left, c, right, square in (
            (rows, cross, other_rows, squares[0]),
            (rows, one, rows, squares[1]),
            (other_rows, other, other_rows, squares[2]),
        )
    ]
    slope = parts[0] / np.sqrt(squares[1] * squares[2])  # of the numerator, then of both norms below
    return Linear(value, slope - value / 2 * (parts[1] / squares[1] + parts[2] / squares[2]))


def procrustes(cross: Tensor, one: Tensor, other: Tensor, rows: Tensor, other_rows: Tensor) -> Linear:
    """As `linear_cka`."""
    traces = [float(c.trace()) for c in (one, other)]
    if not traces[0] or not traces[1]:
        return Linear(float("nan"), np.full(len(rows), np.nan))
    left, singular, right = torch.linalg.svd(cross, full_matrices=False)
    total, size = float(singular.sum()), float(np.sqrt(traces[0] * traces[1]))
    value = total / size
    slope = (_quadratic(rows, left @ right, other_rows) - total) / size
    sizes = [c.square().sum(1).numpy() / trace - 1 for c, trace in zip((rows, other_rows), traces, strict=True)]
    return Linear(value, slope - value / 2 * (sizes[0] + sizes[1]))


def _quadratic(left: Tensor, matrix: Tensor, right: Tensor) -> Floats:
    """(n,) left[i] @ matrix @ right[i]."""
    products: Floats = ((left @ matrix) * right).sum(1).numpy()
    return products


def distances(rows: Floats, kind: Distance) -> Floats:
    """(n * (n - 1) / 2,) distances between all pairs of rows (n, dim): the upper triangle of the RDM, row by row."""
    if kind == "correlation":
        rows = rows - rows.mean(1, keepdims=True)
    if kind != "euclidean":
        rows = unit(rows)
    products = rows @ rows.T
    if kind == "euclidean":
        squares = np.diag(products).copy()
        products = np.sqrt(np.maximum(squares[:, None] + squares - 2 * products, 0))
    else:
        products = 1 - products
    return upper_triangle(products)


def upper_triangle(square: Floats) -> Floats:
    return np.concatenate([np.empty(0), *(square[row, row + 1 :] for row in range(len(square)))])


def unit(rows: Floats) -> Floats:
    """Rows of length one; those of zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths == 0, 1, lengths)


def rank_codes(values: Floats) -> NDArray[np.int32]:
    """(n,) the place of each value among the distinct ones; what rounding alone tells apart is equal."""
    step = _EQUAL * max(float(np.abs(values).max(initial=0)), np.finfo(np.float64).tiny)
    codes: NDArray[np.int32] = np.unique(np.round(values / step), return_inverse=True)[1].astype(np.int32)
    return codes


def weighted_ranks(codes: NDArray[np.int32], weights: Floats | None = None) -> Floats:
    """(n,) ranks of values that are there as often as their weight says, ties in the middle of theirs."""
    mass = np.bincount(codes, weights)
    ranks: Floats = (np.cumsum(mass) - mass / 2)[codes]
    return ranks


def correlation(one: Floats, other: Floats, weights: Floats | None = None) -> float:
    """Pearson's; NaN where one of them is constant."""
    if not len(one):
        return float("nan")
    one, other = (values - np.average(values, weights=weights) for values in (one, other))
    heavy = one if weights is None else one * weights
    size = np.sqrt((heavy @ one) * (other @ other if weights is None else (other * weights) @ other))
    return float(heavy @ other / size) if size > 0 else float("nan")


def nearest(rows: Floats, k: int) -> NDArray[np.int64]:
    """(n, k) the rows nearest to each row (n, dim) by cosine, without itself; equally near ones by their number."""
    units = unit(rows)
    similar = units @ units.T
    np.fill_diagonal(similar, -np.inf)
    return np.argsort(-similar, axis=1, kind="stable")[:, :k]


def overlaps(one: NDArray[np.int64], other: NDArray[np.int64]) -> Floats:
    """(n,) the share of the k nearest (n, k) that both have."""
    shared = np.array([(near[:, None] == far).sum() for near, far in zip(one, other, strict=True)], np.float64)
    shared /= one.shape[1]
    return shared

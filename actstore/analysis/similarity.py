"""How alike representations of the same rows are: plain arithmetic, and values with intervals by bootstrap.

Second moments are of all rows, in one pass and bounded memory: CKA and Procrustes. Distances of all pairs and mutual
nearest neighbours are of sampled rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.streams.sampling import Stream, generator


class Covariances:
    """Sums of products of rows that are added block by block.

    Blocks are multiplied in float32 and added up in float64. They are shifted by the mean of the first block and
    divided by its size before, so that nothing cancels or overflows; the measures here do not depend on either.
    Memory: 8 bytes for every pair of features.
    """

    def __init__(self, first: Sequence[Tensor]) -> None:
        """first: a block (n, dim) of each representation, which is looked at and not added."""
        self._centres = [block.double().mean(0).float() for block in first]
        shifted = [block.double() - centre for block, centre in zip(first, self._centres, strict=True)]
        self._sizes = [float(block.square().mean().sqrt()) or 1.0 for block in shifted]
        self._sums = [torch.zeros(block.shape[1], dtype=torch.float64) for block in first]
        pairs = combinations_with_replacement(range(len(first)), 2)
        self._products = {
            (i, j): torch.zeros((first[i].shape[1], first[j].shape[1]), dtype=torch.float64) for i, j in pairs
        }
        self.rows = 0

    def add(self, blocks: Sequence[Tensor]) -> None:
        """A block (n, dim) of each representation, of the same rows."""
        scaled = [self._scaled(block.float(), number) for number, block in enumerate(blocks)]
        for total, block in zip(self._sums, scaled, strict=True):
            total += block.sum(0, dtype=torch.float64)
        for (i, j), product in self._products.items():
            product += scaled[i].T @ scaled[j]
        self.rows += len(blocks[0])

    def between(self, i: int, j: int) -> Tensor:
        """(dim of i, dim of j) covariance in float64, in units of the representations' sizes; i <= j."""
        product = self._products[i, j] / self.rows
        return product.addr_(self._sums[i] / self.rows, self._sums[j] / self.rows, alpha=-1)

    def centred(self, rows: Tensor, i: int) -> Tensor:
        """Rows (n, dim) of representation i in float64, in its units, less its mean."""
        return self._scaled(rows.double(), i) - self._sums[i] / self.rows

    def _scaled(self, rows: Tensor, i: int) -> Tensor:
        return (rows - self._centres[i]).div_(self._sizes[i])


Floats = NDArray[np.float64]
Linear = tuple[float, Floats]
_EQUAL = 1e-10  # of the largest distance: nearer ones are ties, which rounding would order at random


def linear_cka(cross: Tensor, one: Tensor, other: Tensor, rows: Tensor, other_rows: Tensor) -> Linear:
    """The similarity, and what each of some rows adds to it: its influence (n,), to first order and of mean about 0.

    cross, one, other: covariances between both and within each. rows, other_rows (n, dim): some centred rows. NaN where
    one of them is constant.
    """
    squares = [float(c.square().sum()) for c in (cross, one, other)]
    if not squares[1] or not squares[2]:
        return float("nan"), np.full(len(rows), np.nan)
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
    return value, slope - value / 2 * (parts[1] / squares[1] + parts[2] / squares[2])


def procrustes(cross: Tensor, one: Tensor, other: Tensor, rows: Tensor, other_rows: Tensor) -> Linear:
    """As `linear_cka`."""
    traces = [float(c.trace()) for c in (one, other)]
    if not traces[0] or not traces[1]:
        return float("nan"), np.full(len(rows), np.nan)
    left, singular, right = torch.linalg.svd(cross, full_matrices=False)
    total, size = float(singular.sum()), float(np.sqrt(traces[0] * traces[1]))
    value = total / size
    slope = (_quadratic(rows, left @ right, other_rows) - total) / size
    sizes = [c.square().sum(1).numpy() / trace - 1 for c, trace in zip((rows, other_rows), traces, strict=True)]
    return value, slope - value / 2 * (sizes[0] + sizes[1])


def _quadratic(left: Tensor, matrix: Tensor, right: Tensor) -> Floats:
    """(n,) left[i] @ matrix @ right[i]."""
    products: Floats = ((left @ matrix) * right).sum(1).numpy()
    return products


def distances(rows: Floats, kind: str) -> Floats:
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


MEASURES = ("cka", "procrustes", "rsa-spearman", "rsa-pearson", "knn")
DISTANCES = ("correlation", "cosine", "euclidean")
LEAST_ROWS = 3
_LOWEST = {"rsa-spearman": -1.0, "rsa-pearson": -1.0}  # of the others 0
_RESAMPLED_ROWS = 1000  # of which distances are drawn again: an interval needs no more of them


@dataclass(frozen=True)
class Settings:
    """measures: some of MEASURES. sample: rows for RSA and k-NN. k: neighbours. distance: of RDMs.

    resamples: of the bootstrap, 0 for no intervals.
    """

    measures: tuple[str, ...] = MEASURES
    sample: int = 2000
    k: int = 10
    distance: str = "correlation"
    resamples: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.measures if name not in MEASURES]
        if unknown or not self.measures:
            raise InvalidInputError(
                f"measures must be some of {', '.join(MEASURES)}, got {', '.join(unknown) or 'none'}"
            )
        if self.distance not in DISTANCES:
            raise InvalidInputError(f"distance must be one of {', '.join(DISTANCES)}, got {self.distance!r}")
        for name, least in (("sample", LEAST_ROWS), ("k", 1), ("resamples", 0)):
            if getattr(self, name) < least:
                raise InvalidInputError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def needs_covariances(self) -> bool:
        return bool({"cka", "procrustes"} & set(self.measures))


class _Sampled:
    """Sampled rows (n, dim) of one representation, and what is computed of them once."""

    def __init__(self, rows: Floats, settings: Settings) -> None:
        self._rows, self._settings = rows, settings

    @cached_property
    def nearest(self) -> NDArray[np.int64]:
        return nearest(self._rows, min(self._settings.k, len(self._rows) - 1))

    @cached_property
    def distances(self) -> Floats:
        return distances(self._rows, self._settings.distance)

    @cached_property
    def ranks(self) -> Floats:
        return weighted_ranks(rank_codes(self.distances))


class Measurer:
    """Values and intervals of any measure; what belongs to one representation alone is computed once."""

    def __init__(
        self, covariances: Covariances | None, sampled: Sequence[Tensor], count: int, settings: Settings
    ) -> None:
        """sampled: rows (n, dim) of each representation. count: of all rows."""
        self._covariances, self._sampled, self._count, self._settings = covariances, sampled, count, settings
        usable = ~torch.stack([(rows == rows[:, :1]).all(1) for rows in sampled]).any(0)  # have a direction everywhere
        self._usable, self.left_out = int(usable.sum()), int((~usable).sum())
        self._pairwise = [_Sampled(rows[usable].double().numpy(), settings) for rows in sampled]
        self._weights = _resample_weights(min(self._usable, _RESAMPLED_ROWS), settings)

    def measure(self, measure: str, i: int, j: int) -> tuple[float, float, float]:
        """Value, low and high end."""
        shrink = 1.0
        if measure in ("cka", "procrustes"):
            assert self._covariances is not None
            rows = [self._covariances.centred(self._sampled[number], number) for number in (i, j)]
            within = [self._covariances.between(number, number) for number in (i, j)]
            compared = linear_cka if measure == "cka" else procrustes
            value, influence = compared(self._covariances.between(i, j), *within, *rows)
            drawn = _resampled_means(influence, self._settings)
            shrink = np.sqrt(len(influence) / self._count)
        elif measure == "knn":
            near = [self._pairwise[number].nearest for number in (i, j)] if self._usable > 1 else []
            shared = overlaps(*near) if near else np.full(1, np.nan)
            value, drawn = float(shared.mean()), _resampled_means(shared, self._settings)
        else:
            value, drawn = self._rsa(measure == "rsa-spearman", i, j)
            shrink = np.sqrt(min(1.0, _RESAMPLED_ROWS / max(1, self._usable)))
        return value, *_interval(value, drawn, shrink, _LOWEST.get(measure, 0.0))

    def _rsa(self, by_rank: bool, i: int, j: int) -> tuple[float, Floats]:
        """Its value, and the values of resamples of the first rows, whose pairs of one row with itself do not count."""
        pair = [self._pairwise[number] for number in (i, j)]
        one, other = (each.ranks if by_rank else each.distances for each in pair)
        few = _first_rows(self._usable, self._weights.shape[1])
        parts = one[few], other[few]
        codes = [rank_codes(part) for part in parts] if by_rank else []
        drawn = np.full(len(self._weights), np.nan)
        for number, weights in enumerate(self._weights):
            pairs = upper_triangle(np.outer(weights, weights))
            if pairs.any():
                left, right = (weighted_ranks(code, pairs) for code in codes) if by_rank else parts
                drawn[number] = correlation(left, right, pairs)
        return correlation(one, other), drawn


def _first_rows(count: int, first: int) -> NDArray[np.int64]:
    """Places in the upper triangle of (count, count) of the pairs among the first rows, in the order of theirs."""
    starts = np.arange(first) * (2 * count - np.arange(first) - 1) // 2
    return np.concatenate([np.empty(0, np.int64), *(starts[row] + np.arange(first - row - 1) for row in range(first))])


def _resample_weights(rows: int, settings: Settings) -> Floats:
    """(resamples, rows) how often each row is drawn."""
    weights = np.zeros((settings.resamples, rows))
    for number in range(settings.resamples if rows else 0):
        drawn = generator(settings.seed, 1 + number, Stream.COMPARED_ROWS).integers(0, rows, rows)
        weights[number] = np.bincount(drawn, minlength=rows)
    return weights


def _resampled_means(values: Floats, settings: Settings) -> Floats:
    return _resample_weights(len(values), settings) @ values / max(1, len(values))


def _interval(value: float, drawn: Floats, shrink: float, lowest: float) -> tuple[float, float]:
    """95%: the spread of resamples about their mean, which is biased, put about the value."""
    if not len(drawn) or np.isnan(value) or np.isnan(drawn).all():
        return float("nan"), float("nan")
    ends = value + shrink * (np.nanquantile(drawn, [0.025, 0.975]) - np.nanmean(drawn))
    low, high = np.clip(ends, lowest, 1.0).tolist()
    return low, high

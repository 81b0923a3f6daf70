"""Values and intervals of the measures, from covariances of all rows and from sampled rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.analysis.covariances import Covariances
from actstore.analysis.similarity import (
    Distance,
    Floats,
    Linear,
    correlation,
    distances,
    linear_cka,
    nearest,
    overlaps,
    procrustes,
    rank_codes,
    upper_triangle,
    weighted_ranks,
)
from actstore.errors import InvalidInputError
from actstore.streams.sampling import Stream, generator

MEASURES = ("cka", "procrustes", "rsa-spearman", "rsa-pearson", "knn")
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
    distance: Distance = "correlation"
    resamples: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.measures if name not in MEASURES]
        if unknown or not self.measures:
            raise InvalidInputError(
                f"measures must be some of {', '.join(MEASURES)}, got {', '.join(unknown) or 'none'}"
            )
        if self.distance not in get_args(Distance):
            raise InvalidInputError(f"distance must be one of {', '.join(get_args(Distance))}, got {self.distance!r}")
        for name, least in (("sample", LEAST_ROWS), ("k", 1), ("resamples", 0)):
            if getattr(self, name) < least:
                raise InvalidInputError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def needs_covariances(self) -> bool:
        return bool({"cka", "procrustes"} & set(self.measures))


@dataclass(frozen=True)
class Usable:
    """Sampled rows that have a direction in every representation, and how many have none."""

    rows: NDArray[np.int64]
    left_out: int

    @classmethod
    def of(cls, sampled: Sequence[torch.Tensor]) -> Usable:
        is_flat = [(rows == rows[:, :1]).all(1).numpy() for rows in sampled]
        flat: NDArray[np.bool_] = np.any(is_flat, axis=0)
        return cls(np.flatnonzero(~flat), int(flat.sum()))


class Measurer:
    """Values and intervals of any measure; what belongs to one representation alone is computed once."""

    def __init__(
        self, covariances: Covariances | None, sampled: Sequence[torch.Tensor], usable: NDArray[np.int64], count: int,
        settings: Settings,
    ) -> None:  # fmt: skip
        """sampled: rows (n, dim) of each representation. usable: which of them have pairs. count: of all rows."""
        self._covariances, self._sampled, self._usable = covariances, sampled, torch.from_numpy(usable)
        self._count, self._settings = count, settings
        self._kept: dict[tuple[str, int], Any] = {}
        self._weights = _resample_weights(min(len(usable), _RESAMPLED_ROWS), settings)

    def measure(self, measure: str, i: int, j: int) -> tuple[float, float, float]:
        """Value, low and high end."""
        if measure in ("cka", "procrustes"):
            assert self._covariances is not None
            found = self._linear(self._covariances, linear_cka if measure == "cka" else procrustes, i, j)
            value, drawn = found.value, _resampled_means(found.influence, self._settings)
            shrink = np.sqrt(len(found.influence) / self._count)
        elif measure == "knn":
            shared = overlaps(self._nearest(i), self._nearest(j)) if len(self._usable) > 1 else np.full(1, np.nan)
            value, drawn, shrink = float(shared.mean()), _resampled_means(shared, self._settings), 1.0
        else:
            value, drawn = self._rsa(measure == "rsa-spearman", i, j)
            shrink = np.sqrt(min(1.0, _RESAMPLED_ROWS / max(1, len(self._usable))))
        return value, *_interval(value, drawn, shrink, _LOWEST.get(measure, 0.0))

    def _linear(self, covariances: Covariances, measure: Callable[..., Linear], i: int, j: int) -> Linear:
        rows = [covariances.centred(self._sampled[number], number) for number in (i, j)]
        within = [covariances.between(number, number) for number in (i, j)]
        return measure(covariances.between(i, j), *within, *rows)

    def _once(self, what: str, i: int, make: Callable[[Floats], Any]) -> Any:
        if (what, i) not in self._kept:
            self._kept[what, i] = make(self._sampled[i][self._usable].double().numpy())
        return self._kept[what, i]

    def _nearest(self, i: int) -> NDArray[np.int64]:
        k = min(self._settings.k, len(self._usable) - 1)
        near: NDArray[np.int64] = self._once("nearest", i, lambda rows: nearest(rows, k))
        return near

    def _distances(self, i: int) -> Floats:
        kind = self._settings.distance
        rdm: Floats = self._once("rdm", i, lambda rows: distances(rows, kind))
        return rdm

    def _ranks(self, i: int) -> Floats:
        ranks: Floats = self._once("ranks", i, lambda _: weighted_ranks(rank_codes(self._distances(i))))
        return ranks

    def _rsa(self, by_rank: bool, i: int, j: int) -> tuple[float, Floats]:
        """Its value, and the values of resamples of the first rows, whose pairs of one row with itself do not count."""
        one, other = (self._ranks(number) if by_rank else self._distances(number) for number in (i, j))
        few = _first_rows(len(self._usable), self._weights.shape[1])
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

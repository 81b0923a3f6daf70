"""The queries' side of the bounds: their codes and norms along the directions of an index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.threads import spread
from actstore.search.compiled import kernels
from actstore.search.integers import OFFSET
from actstore.search.levels import FACTORS, LARGEST, SMALLEST, UP, Levels, bound_margin, rest_norms
from actstore.search.rotation import rotate

_PRODUCTS_TO_SHARE = 1 << 22  # products of a rotation; below, a second thread costs more than it shares


@dataclass(frozen=True)
class EncodedQueries:
    """codes (p, n) int8; scale, error >= |query - scale codes|, norm >= |query|: (n,) float64."""

    codes: Tensor
    scale: NDArray[np.float64]
    error: NDArray[np.float64]
    norm: NDArray[np.float64]


def encode_queries(along: NDArray[np.float64]) -> EncodedQueries:
    """(n, p) coordinates."""
    loops = kernels()
    if loops is not None and loops.adds_in_16_bits:  # four codes: 126, and half for each that is rounded up
        fours = np.abs(along).reshape(len(along), -1, 2, 2, 2).sum(axis=(2, 4))  # 0, 1, 4, 5 of eight, and the others
        largest = fours.reshape(len(along), -1).max(axis=1, initial=0) / (LARGEST - 1)
    else:
        largest = np.abs(along).max(axis=1, initial=0) / LARGEST
    scale = np.maximum(largest, SMALLEST)
    codes = np.clip(np.rint(along / scale[:, None]), -LARGEST, LARGEST)
    error = np.linalg.norm(along - codes * scale[:, None], axis=1)
    norm = np.linalg.norm(along, axis=1)
    stored = torch.from_numpy(np.ascontiguousarray(codes.T.astype(np.int8)))
    return EncodedQueries(stored, scale, error * UP + 1e-12, norm * UP + 1e-12)


@dataclass(frozen=True)
class SecondCodes:
    """Of n queries: codes (n, p2) int8; excess (n,) int32, what the offset of the rows' codes adds to a product; norms
    (n, 8) float32, what the eight floats of a row's second level are multiplied by, the first with the product."""

    codes: NDArray[np.int8]
    excess: NDArray[np.int32]
    norms: NDArray[np.float32]


class QueryCodes:
    """units (n, dim): the queries' directions. Codes of the second level are made when they are asked for, to which a
    search may not come."""

    def __init__(self, units: Tensor, levels: Levels, workers: int = 1) -> None:
        self._units, self._levels, self._workers = units, levels, workers
        self._along = self._rotate(0, 1 + levels.widths[0])  # (n, 1 + p)
        self.first = encode_queries(self._along[:, 1:])
        self._rest = self._rest_norms(self._along)
        self._margin = bound_margin(levels.widths, units.shape[1], levels.skew)

    def __len__(self) -> int:
        return len(self._units)

    def coefficients(self, offset: int) -> Tensor:
        """(FACTORS, n) float32 for the rows' factors: with the products of codes times the row's scale, the bound over
        the query's scale. offset: what the rows' codes are too large by."""
        one, out = self.first, np.empty((FACTORS, len(self)))
        out[1], out[2] = self._margin, self._along[:, 0]
        out[3], out[4], out[5] = one.norm, one.error * UP, self._rest
        out[1:] /= one.scale
        out[0] = -offset * one.codes.sum(0, dtype=torch.int32).numpy().astype(np.float64)
        return torch.from_numpy(out.astype(np.float32))

    @cached_property
    def second(self) -> SecondCodes:
        along = self._rotate(1 + self._levels.widths[0], len(self._levels.directions))  # (n, p2)
        one, two = self.first, encode_queries(along)
        norms = np.zeros((len(self), 8))
        norms[:, 0] = two.scale
        norms[:, 1] = np.hypot(one.norm, two.norm)
        norms[:, 2] = np.hypot(one.error, two.error)
        norms[:, 3] = self._rest_norms(np.concatenate([self._along, along], 1))
        norms[:, 4:7] = -np.stack([one.norm, one.error, self._rest], 1) / UP
        codes = np.ascontiguousarray(two.codes.numpy().T)
        return SecondCodes(codes, OFFSET * codes.sum(1, dtype=np.int32), norms.astype(np.float32))

    def _rest_norms(self, along: NDArray[np.float64]) -> NDArray[np.float64]:
        norms = rest_norms(torch.from_numpy(along), self._units.shape[1], self._levels.skew).numpy()
        above: NDArray[np.float64] = np.sqrt(norms**2 + 1e-12) * UP
        return above

    def _rotate(self, first: int, last: int) -> NDArray[np.float64]:
        """(n, last - first) coordinates along some of the directions, computed in float32."""
        directions = self._levels.directions[first:last]
        along = np.empty((len(self), len(directions)))
        workers = self._workers if len(self) * directions.numel() > _PRODUCTS_TO_SHARE else 1
        step = -(-len(directions) // workers)

        def part(number: int, worker: int) -> None:
            some = slice(number * step, (number + 1) * step)
            along[:, some] = rotate(self._units, directions[some]).numpy()

        spread(part, workers, workers)
        return along

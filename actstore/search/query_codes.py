"""The queries' side of the bounds: their codes and norms along the directions of an index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.threads import spread
from actstore.search.levels import FACTORS, LARGEST, SMALLEST, TAIL, UP, Levels, bound_margin

_SHARED = 1 << 22  # products of a rotation; below, a second thread costs more than it shares


@dataclass(frozen=True)
class EncodedQueries:
    """codes (p, n) int8; scale, error >= |query - scale codes|, norm >= |query|: (n,) float64."""

    codes: Tensor
    scale: NDArray[np.float64]
    error: NDArray[np.float64]
    norm: NDArray[np.float64]


def encode_queries(along: NDArray[np.float64]) -> EncodedQueries:
    """(n, p) float64 coordinates."""
    scale = np.maximum(np.abs(along).max(axis=1, initial=0) / LARGEST, SMALLEST)
    codes = np.clip(np.rint(along / scale[:, None]), -LARGEST, LARGEST)
    error = np.linalg.norm(along - codes * scale[:, None], axis=1)
    norm = np.linalg.norm(along, axis=1)
    stored = torch.from_numpy(np.ascontiguousarray(codes.T.astype(np.int8)))
    return EncodedQueries(stored, scale, error * UP + 1e-12, norm * UP + 1e-12)


@dataclass(frozen=True)
class QueryCodes:
    """Of n queries. along (n, 1 + widths): coordinates. rests: norms beyond each level's coordinates.
    margin: see bound_margin."""

    along: NDArray[np.float64]
    levels: tuple[EncodedQueries, ...]
    rests: tuple[NDArray[np.float64], ...]
    margin: float

    @classmethod
    def of(cls, queries: Tensor, levels: Levels, directions: Tensor, workers: int = 1) -> QueryCodes:
        """queries (n, dim) of any length; directions (1 + widths, dim) float64."""
        exact = queries.double()
        exact = exact / torch.linalg.vector_norm(exact, dim=1, keepdim=True)
        along = np.empty((len(exact), len(directions)))
        workers = workers if len(exact) * directions.numel() > _SHARED else 1
        step = -(-len(directions) // workers)

        def rotate(part: int, worker: int) -> None:
            some = slice(part * step, (part + 1) * step)
            along[:, some] = (exact @ directions[some].T).numpy()

        spread(rotate, workers, workers)
        coded, rests, done = [], [], 1
        for width in levels.widths:
            coded.append(encode_queries(along[:, done : done + width]))
            done += width
            covered = np.einsum("np,np->n", along[:, :done], along[:, :done])
            rests.append(np.sqrt(np.maximum(1 - covered + levels.skew, 0) + 1e-12) * UP)
        margin = bound_margin(levels.widths, queries.shape[1], levels.skew)
        return cls(along, tuple(coded), tuple(rests), margin)

    def __len__(self) -> int:
        return len(self.along)

    def coefficients(self, offset: int) -> Tensor:
        """(FACTORS, n) float32 for the rows' factors: with the products of codes times the row's scale, the bound over
        the query's scale. offset: what the rows' codes are too large by."""
        one = self.levels[0]
        out = np.empty((FACTORS, len(self)))
        out[1], out[2] = self.margin, self.along[:, 0]
        out[3], out[4], out[5] = one.norm, one.error * UP, self.rests[0]
        out[1:] /= one.scale
        out[0] = -offset * one.codes.sum(0, dtype=torch.int32).numpy().astype(np.float64)
        return torch.from_numpy(out.astype(np.float32))

    def second_codes(self) -> Tensor:
        """(n, p2 + TAIL) int8: zero where the rows have floats."""
        codes = self.levels[1].codes
        return torch.cat([codes, codes.new_zeros(TAIL, len(self))]).T.contiguous()

    def second_norms(self) -> NDArray[np.float32]:
        """(n, 8) float32: what the eight floats of a row's second level are multiplied by, the first with the product
        of codes."""
        one, two = self.levels
        out = np.empty((len(self), 8))
        out[:, 0] = two.scale
        out[:, 1] = np.hypot(one.norm, two.norm)
        out[:, 2] = np.hypot(one.error, two.error)
        out[:, 3] = self.rests[1]
        out[:, 4:7] = -np.stack([one.norm, one.error, self.rests[0]], 1) / UP
        out[:, 7] = 0
        return out.astype(np.float32)

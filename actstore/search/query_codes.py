"""The queries' side of the bounds: their codes and norms along the directions of an index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.search.codes import EncodedQueries, encode_queries
from actstore.search.levels import FACTORS, TAIL, Levels, bound_margin

_UP = 1 + 2.0**-20


@dataclass(frozen=True)
class QueryCodes:
    """Of n queries. along (n, 1 + widths): coordinates. rests: norms beyond each level's coordinates.
    margin: see bound_margin."""

    along: NDArray[np.float64]
    levels: tuple[EncodedQueries, ...]
    rests: tuple[NDArray[np.float64], ...]
    margin: float

    @classmethod
    def of(cls, queries: Tensor, levels: Levels, directions: Tensor) -> QueryCodes:
        """queries (n, dim) of any length; directions (1 + widths, dim) float64."""
        exact = queries.double()
        exact = exact / torch.linalg.vector_norm(exact, dim=1, keepdim=True)
        along = (exact @ directions.T).numpy()
        coded, rests, done = [], [], 1
        for width in levels.widths:
            coded.append(encode_queries(along[:, done : done + width]))
            done += width
            covered = np.einsum("np,np->n", along[:, :done], along[:, :done])
            rests.append(np.sqrt(np.maximum(1 - covered + levels.skew, 0) + 1e-12) * _UP)
        margin = bound_margin(levels.widths, queries.shape[1], levels.skew)
        return cls(along, tuple(coded), tuple(rests), margin)

    def __len__(self) -> int:
        return len(self.along)

    def coefficients(self, threshold: NDArray[np.float32], excess: Tensor) -> Tensor:
        """(FACTORS, n) float32 for a level's factors: with the products of codes, the row's bound less the query's
        threshold, over both scales."""
        one = self.levels[0]
        out = np.empty((FACTORS, len(self)))
        out[1] = self.margin - threshold.astype(np.float64)
        out[2] = self.along[:, 0]
        out[3], out[4], out[5] = one.norm, one.error * _UP, self.rests[0]
        out[1:] /= one.scale
        out[0] = -excess.numpy()
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
        out[:, 4:7] = -np.stack([one.norm, one.error, self.rests[0]], 1) / _UP
        out[:, 7] = 0
        return out.astype(np.float32)

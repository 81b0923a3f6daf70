"""Many queries at a time in bfloat16, where the processor multiplies that faster: four times as fast as float32 here.

Rows, queries and products are rounded to 8 bits, sums are float32's. Such scores only narrow the rows down, with a
margin; what is left is multiplied in float32. Rows whose cosines lie closer together than the margin gain nothing, so
the caller stops where too many pairs are left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from actstore.search.half import MOST_QUERIES as FEW
from actstore.search.integers import least_seconds
from actstore.search.ranking import rounding
from actstore.search.table import RowTable

MOST_NEIGHBOURS = 512  # with more, thresholds are so low that the margin leaves too many pairs
MOST_LEFT = 0.005  # of all pairs, before the product in float32 is no slower
_ROUNDED = 1.01 * 2.0**-8  # of a number in bfloat16, as a share of it
_SHORTEST = 1e-20  # of rows: products below 1e-38 may count as zero
_TRIED = 256  # rows


@dataclass(frozen=True)
class BfloatQueries:
    """directions (dim, queries) bfloat16 of unit queries. margin: how far a cosine can be off."""

    directions: Tensor
    margin: float
    is_coarse = True
    _buffers: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, table: RowTable, units: Tensor, k: int) -> BfloatQueries | None:
        """None where float32 is the better way."""
        count = 1 << (len(units) - 1).bit_length()
        if len(units) <= FEW or k > MOST_NEIGHBOURS or not bfloat_pays(table.dim, count):
            return None
        lengths = table.lengths()
        if bool(((lengths > 0) & (lengths < _SHORTEST)).any()):
            return None
        rounded = units.bfloat16()
        query_error = float((units - rounded.float()).norm(dim=1).max())
        # rows rounded, queries rounded, the result rounded, and sums in float32
        margin = _ROUNDED + 1.01 * query_error + _ROUNDED + 2 * rounding(table.dim)
        return cls(rounded.T.contiguous(), margin)

    def multiply(self, rows: Tensor, values: Tensor, out: Tensor, worker: int) -> None:
        """out (n, queries) float32 = rows (n, dim) with the queries; values: float32 memory for converted rows."""
        count, dim = rows.shape
        step = max(1, values.numel() // dim)
        if worker not in self._buffers:
            self._buffers[worker] = torch.empty(step * (dim + out.shape[1]), dtype=torch.bfloat16)
        buffer = self._buffers[worker]
        for start in range(0, count, step):
            piece = rows[start : start + step]
            taken = len(piece) * dim
            if rows.dtype != torch.float32:  # torch converts float16 to bfloat16 ten times as slowly as by float32
                piece = values[:taken].view(piece.shape).copy_(piece)
            coarse = buffer[:taken].view(piece.shape).copy_(piece)
            products = buffer[taken : taken + len(piece) * out.shape[1]].view(len(piece), out.shape[1])
            out[start : start + step].copy_(torch.mm(coarse, self.directions, out=products))


@cache
def bfloat_pays(dim: int, count: int) -> bool:
    """Whether torch sums products of bfloat16 in float32 here, and is faster for so many queries; tried once."""
    random = torch.Generator().manual_seed(0)
    rows, directions = torch.rand(_TRIED, dim, generator=random), torch.rand(dim, count, generator=random)
    rows[0], rows[0, 0], directions[:, 0] = 1, 512, 1  # a sum in bfloat16 would lose the ones
    values, out = torch.empty(_TRIED * dim), torch.empty(_TRIED, count)
    halves, queries = rows.half(), BfloatQueries(directions.bfloat16(), 0.0)
    try:
        queries.multiply(halves, values, out, 0)
        exact = rows.bfloat16().double() @ queries.directions.double()
        if not bool(((out - exact).abs() <= (_ROUNDED + rounding(dim)) * exact).all()):
            return False
        coarse = least_seconds(lambda: queries.multiply(halves, values, out, 0))
        return coarse < 0.7 * least_seconds(
            lambda: torch.mm(values.view(_TRIED, dim).copy_(halves), directions, out=out)
        )
    except RuntimeError:  # no such kernel here
        return False

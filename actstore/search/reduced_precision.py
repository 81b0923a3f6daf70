"""Products in 16 bits that narrow the rows down, with a margin; the few that are left are multiplied in float32.

One query against float16 rows without a converted copy of them, which reads half the bytes: the compiled loops convert
in registers and multiply in float32. Without them it is torch's float16 matrix-vector product, where that is fast: it
sums in float32, and rounds query and result to float16.

Many queries in bfloat16, where the processor multiplies that faster: four times as fast as float32 here. Rows, queries
and products are rounded to 8 bits, sums are float32's. Rows whose cosines lie closer together than the margin gain
nothing, so the caller stops where too many pairs are left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from torch import Tensor

from actstore.search.compiled import address, kernels, least_seconds
from actstore.search.ranking import rounding
from actstore.search.table import RowTable

MOST_QUERIES = 2  # with more, a product of converted rows is no slower
_FP16_ROUNDED = 1.01 * 2.0**-11  # of a number in float16
_FP16_TRIED = 256  # rows


def open_half(table: RowTable, units: Tensor) -> HalfQueries | CompiledQueries | None:
    """For unit queries (n, dim); None where the conversion of rows is the better way."""
    if len(units) > MOST_QUERIES or table.dtype != torch.float16:
        return None
    return HalfQueries.of(table, units) if kernels() is None else CompiledQueries(units, rounding(table.dim))


@dataclass(frozen=True)
class CompiledQueries:
    """vectors (queries, dim) float32; margin: how far a cosine can be off."""

    vectors: Tensor
    margin: float
    is_coarse = False

    def multiply(self, rows: Tensor, values: Tensor, out: Tensor, worker: int) -> None:
        """out (n, queries) float32 = rows (n, dim) float16 with the unit queries; no other memory is needed."""
        held = rows.contiguous()
        kernels().multiply_rows(  # type: ignore[union-attr]
            address(held), True, held.shape[1], len(held), address(self.vectors), len(self.vectors), address(out)
        )


@dataclass(frozen=True)
class HalfQueries:
    """vectors (queries, dim) float16: `scale` times the unit queries, so that nothing overflows or vanishes."""

    vectors: Tensor
    scale: float
    margin: float  # how far a cosine can be off
    is_coarse = True

    @classmethod
    def of(cls, table: RowTable, units: Tensor) -> HalfQueries | None:
        if not half_pays(table.dim):
            return None
        lengths = table.lengths()
        longest = float(lengths.max())
        shortest = float(torch.where(lengths > 0, lengths, torch.inf).min())
        scale = 2.0 ** min(14, np.floor(np.log2(30_000 / longest))) if longest > 0 else 1.0
        if scale < 1 or scale * shortest < 2.0**-10:
            return None
        # query and result rounded, both also where they are subnormal, and a sum in float32
        margin = 2 * _FP16_ROUNDED + 2.0**-15 + np.sqrt(table.dim) * 2.0**-25 + rounding(table.dim)
        return cls((units * scale).half(), scale, float(margin))

    def multiply(self, rows: Tensor, values: Tensor, out: Tensor, worker: int) -> None:
        """out (n, queries) float32 = rows (n, dim) float16 with the unit queries; no other memory is needed."""
        for number, vector in enumerate(self.vectors):
            out[:, number] = torch.mv(rows, vector)
        out.mul_(1 / self.scale)


@cache
def half_pays(dim: int) -> bool:
    """Whether torch sums float16 products in float32 here, and faster than it converts rows; tried once."""
    random = torch.Generator().manual_seed(0)
    rows, vector = torch.rand(_FP16_TRIED, dim, generator=random).half(), torch.ones(dim, dtype=torch.float16)
    rows[0], rows[0, 0], rows[1] = 1, 1024, 0.1  # sums in float16 would lose the ones, and grow too coarse
    try:
        found, exact = torch.mv(rows, vector).double(), rows.double().sum(1)
        if not bool(((found - exact).abs() <= (_FP16_ROUNDED + rounding(dim)) * exact).all()):
            return False
        buffer, query = torch.empty(_FP16_TRIED, dim), torch.ones(dim)
        direct = least_seconds(lambda: torch.mv(rows, vector))
        return direct < least_seconds(lambda: torch.mv(buffer.copy_(rows), query))
    except RuntimeError:  # no such kernel here
        return False


MOST_NEIGHBOURS = 512  # with more, thresholds are so low that the margin leaves too many pairs
MOST_LEFT = 0.005  # of all pairs, before the product in float32 is no slower
_BF16_ROUNDED = 1.01 * 2.0**-8  # of a number in bfloat16, as a share of it
_SHORTEST = 1e-20  # of rows: products below 1e-38 may count as zero
_BF16_TRIED = 256  # rows


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
        if len(units) <= MOST_QUERIES or k > MOST_NEIGHBOURS or not bfloat_pays(table.dim, count):
            return None
        lengths = table.lengths()
        if bool(((lengths > 0) & (lengths < _SHORTEST)).any()):
            return None
        rounded = units.bfloat16()
        query_error = float((units - rounded.float()).norm(dim=1).max())
        # rows rounded, queries rounded, the result rounded, and sums in float32
        margin = _BF16_ROUNDED + 1.01 * query_error + _BF16_ROUNDED + 2 * rounding(table.dim)
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
    rows, directions = torch.rand(_BF16_TRIED, dim, generator=random), torch.rand(dim, count, generator=random)
    rows[0], rows[0, 0], directions[:, 0] = 1, 512, 1  # a sum in bfloat16 would lose the ones
    values, out = torch.empty(_BF16_TRIED * dim), torch.empty(_BF16_TRIED, count)
    halves, queries = rows.half(), BfloatQueries(directions.bfloat16(), 0.0)
    try:
        queries.multiply(halves, values, out, 0)
        exact = rows.bfloat16().double() @ queries.directions.double()
        if not bool(((out - exact).abs() <= (_BF16_ROUNDED + rounding(dim)) * exact).all()):
            return False
        coarse = least_seconds(lambda: queries.multiply(halves, values, out, 0))
        return coarse < 0.7 * least_seconds(
            lambda: torch.mm(values.view(_BF16_TRIED, dim).copy_(halves), directions, out=out)
        )
    except RuntimeError:  # no such kernel here
        return False

"""One query against float16 rows without a converted copy of them, which reads half the bytes.

The compiled loops convert in registers and multiply in float32. Without them it is torch's float16 matrix-vector
product, where that is fast: it sums in float32, and rounds query and result to float16. Such scores only narrow the
rows down, with a margin; the few that are left are multiplied in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from actstore.search.compiled import address, kernels
from actstore.search.integers import least_seconds
from actstore.search.ranking import rounding
from actstore.search.table import RowTable

MOST_QUERIES = 2  # with more, a product of converted rows is no slower
_ROUNDED = 1.01 * 2.0**-11  # of a number in float16
_TRIED = 256  # rows


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
        margin = 2 * _ROUNDED + 2.0**-15 + np.sqrt(table.dim) * 2.0**-25 + rounding(table.dim)
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
    rows, vector = torch.rand(_TRIED, dim, generator=random).half(), torch.ones(dim, dtype=torch.float16)
    rows[0], rows[0, 0], rows[1] = 1, 1024, 0.1  # sums in float16 would lose the ones, and grow too coarse
    try:
        found, exact = torch.mv(rows, vector).double(), rows.double().sum(1)
        if not bool(((found - exact).abs() <= (_ROUNDED + rounding(dim)) * exact).all()):
            return False
        buffer, query = torch.empty(_TRIED, dim), torch.ones(dim)
        direct = least_seconds(lambda: torch.mv(rows, vector))
        return direct < least_seconds(lambda: torch.mv(buffer.copy_(rows), query))
    except RuntimeError:  # no such kernel here
        return False

"""Principal directions of unit rows, and how far leading coordinates narrow down the nearest neighbours.

With q and x split into p leading coordinates and a rest, Cauchy and Schwarz say q.x <= q_p.x_p + |q_r| |x_r|.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from actstore.search.exact import ExactSearch
from actstore.search.queries import unit
from actstore.search.table import RowTable
from actstore.streams.sampling import Stream, generator

WIDTHS = (16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 1024)  # coordinates tried, and a norm
_SAMPLE, _PROBES, _PROBE_K = 16_384, 32, 10
_STEP = 256  # coordinates multiplied at a time: shorter sums have smaller worst cases


def fit_directions(table: RowTable, seed: int = 0) -> Tensor:
    """(dim, dim) float32, orthonormal, the one with the largest share of the unit rows first."""
    sample = sample_rows(table, _SAMPLE, seed)
    moments = (sample.T @ sample).double()
    vectors: Tensor = torch.linalg.eigh(moments).eigenvectors
    return vectors.flip(1).T.contiguous().float()


def sample_rows(table: RowTable, count: int, seed: int = 0) -> Tensor:
    """(n, dim) unit rows drawn without replacement, in the order of the table; rows of zeros are left out."""
    chosen = generator(seed, 0, Stream.ROTATION).choice(len(table), min(count, len(table)), replace=False)
    rows = unit(table.take(np.sort(chosen)).float())
    return rows[(rows != 0).any(1)]


def measure_narrowing(table: RowTable, directions: Tensor, seed: int = 0) -> dict[int, float]:
    """Share of the rows that each width leaves for a query. Probes are rows, which do not count as neighbours."""
    sample = sample_rows(table, _SAMPLE, seed)
    if len(sample) <= _PROBE_K:
        return {}
    probes = sample[torch.from_numpy(generator(seed, 1, Stream.ROTATION).permutation(len(sample))[:_PROBES])]
    scores, _ = ExactSearch(table).search(probes, _PROBE_K + 1)
    return _narrow(rotate(sample, directions), rotate(probes, directions), torch.from_numpy(scores[:, -1].copy()))


def _narrow(rows: Tensor, queries: Tensor, kth: Tensor) -> dict[int, float]:
    found, scores, done = {}, torch.zeros(len(rows), len(queries)), 0
    for width in [width for width in WIDTHS if width <= rows.shape[1]]:
        p = width - 1
        scores += rows[:, done:p] @ queries[:, done:p].T
        rest = rows[:, p:].norm(dim=1)[:, None] * queries[:, p:].norm(dim=1)
        left = scores + rest >= kth - storage_margin(p, rows.shape[1])
        found[width] = float(left.float().mean())
        done = p
    return found


def rotate(rows: Tensor, directions: Tensor) -> Tensor:
    """(n, dim) float32 -> (n, p) coordinates along directions (p, dim)."""
    out = torch.zeros(len(rows), len(directions))
    for start in range(0, rows.shape[1], _STEP):
        out.addmm_(rows[:, start : start + _STEP], directions[:, start : start + _STEP].T)
    return out


def rotation_error(p: int, dim: int) -> float:
    """The most by which p coordinates of a unit vector, as `rotate` computes them, can be off: the norm of it."""
    return float(np.sqrt(p) * (min(dim, _STEP) + dim / _STEP + 8) * 2.0**-24)


def storage_margin(p: int, dim: int) -> float:
    """The most by which a bound from float16 coordinates can be below the exact one: rounding of what is stored,
    of the rotation (also its directions, which are orthonormal only to float32) and of sums of p products."""
    return float(1.01 * 2.0**-11 + np.sqrt(p) * 2.0**-24 + 2 * rotation_error(p, dim) + (2 * p + 16) * 2.0**-24)


def choose_widths(narrowing: dict[int, float], rows: int, dim: int) -> tuple[int, ...]:
    """One or two widths that cost least, or none where the plain product is as good.

    Costs are multiplications per row and query of a batch, from timings on one core: a pair that is gathered costs
    as much as 4,000 of those in a matrix product, each coordinate of it 15, the calls 10 microseconds a query.
    """
    plans: dict[tuple[int, ...], float] = {}
    for first, left in narrowing.items():
        plans[first,] = first + left * (4000 + 15 * dim)
        for second, after in narrowing.items():
            if second >= first + 64:
                gathered = left * (4000 + 15 * (second - first)) + after * (4000 + 15 * dim)
                plans[first, second] = first + gathered + 10e-6 / (rows * 0.033e-9)
    best = min(plans, key=lambda plan: plans[plan], default=())
    return best if best and plans[best] < 0.6 * dim else ()

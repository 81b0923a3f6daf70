"""Principal directions of unit rows, and coordinates along them with a worst case of their rounding."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from actstore.search.queries import unit
from actstore.search.table import RowTable
from actstore.streams.sampling import Stream, generator

SAMPLE = 16_384
_STEP = 256  # coordinates multiplied at a time: shorter sums have smaller worst cases


def fit_directions(table: RowTable, seed: int = 0) -> Tensor:
    """(dim, dim) float32, orthonormal, the one with the largest share of the unit rows first."""
    return principal(sample_rows(table, SAMPLE, seed)).float()


def principal(sample: Tensor) -> Tensor:
    """(n, dim) unit rows -> (dim, dim) float64 directions."""
    moments = (sample.T @ sample).double()
    vectors: Tensor = torch.linalg.eigh(moments).eigenvectors
    return vectors.flip(1).T.contiguous()


def sample_rows(table: RowTable, count: int, seed: int = 0) -> Tensor:
    """(n, dim) unit rows drawn without replacement, in the order of the table; rows of zeros are left out."""
    chosen = generator(seed, 0, Stream.ROTATION).choice(len(table), min(count, len(table)), replace=False)
    rows = unit(table.take(np.sort(chosen)))
    return rows[(rows != 0).any(1)]


def turned(directions: Tensor, widths: tuple[int, ...], seed: int = 0) -> Tensor:
    """The first of (n, dim) float64 directions as it is, the next widths[0] turned at random among themselves, and so
    on: coordinates of equal size lose least to codes with one scale. -> (1 + sum of widths, dim) float32."""
    parts, done = [directions[:1]], 1
    for number, width in enumerate(widths):
        draws = generator(seed, 2 + number, Stream.ROTATION).standard_normal((width, width))
        parts.append(torch.from_numpy(np.linalg.qr(draws)[0]) @ directions[done : done + width])
        done += width
    return torch.cat(parts).float().contiguous()


def skewness(directions: Tensor) -> float:
    """How far (n, dim) directions are from orthonormal: at least the spectral norm of D D' - 1."""
    exact = directions.double()
    gram = exact @ exact.T
    gram.diagonal().sub_(1)
    return float(torch.linalg.vector_norm(gram)) * 1.001 + 1e-12


def rotate(rows: Tensor, directions: Tensor) -> Tensor:
    """(n, dim) float32 -> (n, p) coordinates along directions (p, dim)."""
    out = rows.new_zeros(len(rows), len(directions))
    part = torch.empty_like(out)
    for start in range(0, rows.shape[1], _STEP):
        # added apart, so that no library sums all of a row in one chain
        torch.mm(rows[:, start : start + _STEP], directions[:, start : start + _STEP].T, out=part)
        out.add_(part)
    return out


def rotation_error(p: int, dim: int) -> float:
    """The most by which p coordinates of a unit vector, as `rotate` computes them, can be off: the norm of it.

    A sum of n products of two unit vectors is off by n roundings at most, since the products' sizes sum to one; one
    rounding more is that of the unit vector."""
    rounding = 2.0**-24 if torch.get_float32_matmul_precision() == "highest" else 2.0**-8  # else bfloat16 is allowed
    return float(np.sqrt(p) * (min(dim, _STEP) + dim / _STEP + 8) * rounding + 2.0**-22)

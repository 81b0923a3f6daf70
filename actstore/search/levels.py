"""Leading coordinates of unit rows as 8-bit codes, kept beside the store: what a bounded search reads instead of rows.

With q and x split along orthonormal directions into coordinates that are coded and a rest, and codes q~ and x~,
q.x <= q~.x~ + |q_p| |x_p - x~_p| + |q_p - q~_p| |x~_p| + |q_r| |x_r|
The first coordinate, which most of a row lies along, stays a float. The next p are turned among themselves and coded.
Norms are rounded up. `first` (rows, p) holds the codes of the first level, `factors` (rows, 6) what a product of both
sides' norms needs: the row's scale, 1, x_0, |x_p - x~_p|, |x~_p|, |x_r|. `second` (rows, p2 + 32) holds the codes of
the coordinates that follow and eight floats: scale, error, norm and rest with both levels, those three of the
first level again, and one that is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from actstore.search.integers import OFFSET
from actstore.search.queries import unit
from actstore.search.rotation import rotate, rotation_error

FACTORS = 6
TAIL = 32  # bytes of the eight floats after the second level's codes
LARGEST = 127  # code
SMALLEST = 1e-9  # scale: vectors that vanish along these directions have codes of zero
UP = 1 + 2.0**-20  # more than float32 rounds


@dataclass(frozen=True)
class Levels:
    """widths: coded coordinates of each level, none where the bound does not pay. skew: of the directions, which are
    (1 + sum of widths, dim). Rows from len(first) on are not covered."""

    widths: tuple[int, ...]
    skew: float
    directions: Tensor
    factors: Tensor
    first: Tensor
    second: Tensor

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.directions, self.factors, self.first, self.second))


Shapes = dict[str, tuple[str, tuple[int, ...]]]


def level_shapes(rows: int, dim: int, widths: tuple[int, ...]) -> Shapes:
    """Of the arrays: name -> (type, shape)."""
    held = rows if widths else 0
    second = widths[1] + TAIL if len(widths) > 1 else 0
    return {
        "directions": ("F32", (1 + sum(widths) if widths else 0, dim)),
        "factors": ("F32", (held, FACTORS)),
        "first": ("U8", (held, widths[0] if widths else 0)),
        "second": ("U8", (held if second else 0, second)),
    }


@dataclass(frozen=True)
class Encoded:
    """Of n vectors (n, p): codes (n, p) stored; scale, error >= |vector - scale codes|, norm >= |scale codes|; (n,)."""

    codes: Tensor
    scale: Tensor
    error: Tensor
    norm: Tensor


def encode_rows(along: Tensor) -> Encoded:
    """(n, p) float32 coordinates; norms are in float64."""
    scale = (along.abs().amax(1) / LARGEST).clamp_(min=SMALLEST)[:, None]
    codes = (along / scale).round_().clamp_(-LARGEST, LARGEST)
    lost = torch.addcmul(along, codes, scale, value=-1)  # each rounded by 2**-23 of its coordinate at most
    norm = torch.linalg.vector_norm(along, dim=1, dtype=torch.float64)
    error = torch.linalg.vector_norm(lost, dim=1, dtype=torch.float64) + 2.0**-22 * norm
    return Encoded(codes.add_(OFFSET).to(torch.uint8), scale[:, 0], error, norm + error)


def encode_levels(rows: Tensor, levels: Levels) -> dict[str, Tensor]:
    """factors, first and second of (n, dim) rows as they are stored, for the directions of levels."""
    directions, widths, skew = levels.directions, levels.widths, levels.skew
    along, p = rotate(unit(rows), directions), widths[0]  # (n, 1 + p + p2)
    one = encode_rows(along[:, 1 : 1 + p])
    rest = rest_norms(along[:, : 1 + p], rows.shape[1], skew)
    norms = [_rounded_up(norm) for norm in (one.error, one.norm, rest)]
    made = {
        "factors": torch.stack([one.scale, torch.ones_like(one.scale), along[:, 0], *norms], 1),
        "first": one.codes,
    }
    if len(widths) == 1:
        return made
    two = encode_rows(along[:, 1 + p :].contiguous())
    both = [torch.hypot(one.error, two.error), torch.hypot(one.norm, two.norm), rest_norms(along, rows.shape[1], skew)]
    # of the first level's norms, those that are taken off: as they were put on
    first_norms = [one.error, one.norm, rest]
    tail = torch.stack([two.scale, *map(_rounded_up, both), *(norm.float() for norm in first_norms), two.scale], 1)
    return {**made, "second": torch.cat([two.codes, tail.contiguous().view(torch.uint8)], 1)}


def rest_norms(along: Tensor, dim: int, skew: float) -> Tensor:
    """(n, p) coordinates of unit vectors as `rotate` computes them -> (n,) norms of the rest, not too small."""
    norm = torch.linalg.vector_norm(along, dim=1, dtype=torch.float64) - rotation_error(along.shape[1], dim)
    square: Tensor = 1 - norm.clamp(min=0).square() + skew
    return square.clamp(min=0).sqrt()


def bound_margin(widths: tuple[int, ...], dim: int, skew: float) -> float:
    """The most by which a bound from codes of these widths, computed in float32, can be below the exact one.

    Rotation of row and query, directions that are orthonormal only up to `skew`, and roundings of ten terms: each is at
    most one, but for the offset in the rows' codes, at most the root of p.
    """
    p = 1 + sum(widths)
    terms = 8 + 1.02 * np.sqrt(widths[0])
    return float(2.02 * rotation_error(p, dim) + skew + 24 * terms * 2.0**-24)


def _rounded_up(values: Tensor) -> Tensor:
    """float64 >= 0 -> float32, not below."""
    return (values * UP).float()

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
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import spread
from actstore.search.compiled import OFFSET, address, kernels
from actstore.search.table import RowTable, unit
from actstore.streams.sampling import Stream, generator

SAMPLE = 16_384
_STEP = 256  # coordinates multiplied at a time: shorter sums have smaller worst cases
_FEW, _CHAINS = 32, 16  # rows; and sums that compiled loops make of a product, at least, before they add those


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


def rotate_few(rows: Tensor, directions: Tensor) -> Tensor:
    """As `rotate`, for so few rows that reading the directions takes longest: compiled loops do it at memory speed."""
    loops = kernels()
    if loops is None or len(rows) > _FEW or rows.shape[1] > _CHAINS * _STEP:
        return rotate(rows, directions)
    out = torch.empty(len(directions), len(rows))
    loops.multiply_rows(
        address(directions), False, rows.shape[1], len(directions), address(rows), len(rows), address(out)
    )
    return out.T


def rotation_error(p: int, dim: int) -> float:
    """The most by which p coordinates of a unit vector, as `rotate` computes them, can be off: the norm of it.

    A sum of n products of two unit vectors is off by n roundings at most, since the products' sizes sum to one; one
    rounding more is that of the unit vector."""
    rounding = 2.0**-24 if torch.get_float32_matmul_precision() == "highest" else 2.0**-8  # else bfloat16 is allowed
    return float(np.sqrt(p) * (min(dim, _STEP) + dim / _STEP + 8) * rounding + 2.0**-22)


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


# products of a rotation, and values of its directions; below, a second thread costs more than it shares
_PRODUCTS_TO_SHARE, _VALUES_TO_SHARE = 1 << 22, 1 << 20


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


SINGLE_QUERIES = 2  # queries, each of which is multiplied with a row on its own; panels are faster for more
_LANES = 16  # queries of a panel, two of which are multiplied at a time


@dataclass(frozen=True)
class LaneCodes:
    """Of n queries as compiled loops read them, with zeros for what fills the last panel up: see loops/loops.h, Batch.

    codes (panels, p / 4, 16, 4), or (n, p) for a few queries, which have no panels."""

    panels: int
    codes: NDArray[np.int8]
    excess: NDArray[np.int32]
    coefficients: NDArray[np.float32]
    scales: NDArray[np.float32]


class QueryCodes:
    """units (n, dim): the queries' directions. Codes of the second level are made when they are asked for, to which a
    search may not come."""

    def __init__(self, units: Tensor, levels: Levels, workers: int = 1) -> None:
        self.units, self._levels, self._workers = units, levels, workers
        self._along = self._rotate(0, 1 + levels.widths[0])  # (n, 1 + p)
        self.first = encode_queries(self._along[:, 1:])
        self._rest = self._rest_norms(self._along)
        self._margin = bound_margin(levels.widths, units.shape[1], levels.skew)

    def __len__(self) -> int:
        return len(self.units)

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
    def lanes(self) -> LaneCodes:
        codes, count = self.first.codes.numpy(), len(self)  # (p, n)
        panels = 0 if count <= SINGLE_QUERIES else -(-count // _LANES)
        filled = np.zeros((len(codes), panels * _LANES or count), np.int8)
        filled[:, :count] = codes
        ordered = filled.reshape(-1, 4, panels, _LANES).transpose(2, 0, 3, 1) if panels else filled.T
        coefficients, scales = np.zeros((FACTORS, filled.shape[1]), np.float32), np.zeros(filled.shape[1], np.float32)
        coefficients[:, :count], scales[:count] = self.coefficients(0), self.first.scale
        return LaneCodes(
            panels, np.ascontiguousarray(ordered), OFFSET * filled.sum(0, dtype=np.int32), coefficients, scales
        )

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
        norms = rest_norms(torch.from_numpy(along), self.units.shape[1], self._levels.skew).numpy()
        above: NDArray[np.float64] = np.sqrt(norms**2 + 1e-12) * UP
        return above

    def _rotate(self, first: int, last: int) -> NDArray[np.float64]:
        """(n, last - first) coordinates along some of the directions, computed in float32."""
        directions = self._levels.directions[first:last]
        along = np.empty((len(self), len(directions)))
        is_long = directions.numel() > _VALUES_TO_SHARE or len(self) * directions.numel() > _PRODUCTS_TO_SHARE
        workers = self._workers if is_long else 1
        step = -(-len(directions) // workers)

        def part(number: int, worker: int) -> None:
            some = slice(number * step, (number + 1) * step)
            along[:, some] = rotate_few(self.units, directions[some]).numpy()

        spread(part, workers, workers)
        return along

"""8-bit codes of all rows for a search among themselves: which coordinates they have, and the order of the rows.

Bounds are those of levels.py, but the codes of all rows have one scale in each stage, so that a product of two rows
serves both of them, and the same codes are read as rows' and as queries'. What a stage does not code is bounded by
lengths of rests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import spread
from actstore.search.compiled import MOST_CODES
from actstore.search.exact import ExactSearch
from actstore.search.levels import UP, bound_margin, principal, rest_norms, rotate, skewness, turned
from actstore.search.plan import coding_error
from actstore.search.table import RowTable, unit
from actstore.streams.sampling import Stream, generator

SAMPLE = 16_384
PADDED = 64  # rows more than there are, which the last registers read
_PIECE = 1024  # rows coded at a time
_CLIPPED = 0.99  # share of the rows none of whose coordinates is beyond the largest code
_STEP = 64  # coordinates
_PROBES, _LOOKED_AT = 64, 4096  # rows of the sample that tell how many pairs are left
_MOST_BYTES = 3 << 29  # of all codes


class JoinedRows:
    """Rows of several tensors (rows, dim) of one type, numbered through all of them. numbers (n,): of those that are
    searched, in the order in which they are passed over; none is zero."""

    def __init__(self, values: Sequence[Tensor], numbers: NDArray[np.int64]) -> None:
        self.values = [part.contiguous() for part in values]
        self.dim, self.dtype = values[0].shape[1], values[0].dtype
        self._starts = np.cumsum([0, *(len(part) for part in values)])
        self.set_order(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def set_order(self, numbers: NDArray[np.int64]) -> None:
        self.numbers = numbers
        bases = np.array([part.data_ptr() for part in self.values], np.int64)
        part = np.searchsorted(self._starts, numbers, side="right") - 1
        inside = numbers - self._starts[part]
        self.addresses: NDArray[np.int64] = bases[part] + inside * self.dim * self.dtype.itemsize

    def take(self, places: NDArray[np.int64]) -> Tensor:
        """(n,) places in the order -> (n, dim)."""
        numbers = self.numbers[places]
        parts = np.searchsorted(self._starts, numbers, side="right") - 1
        if len(self.values) == 1:
            return self.values[0].index_select(0, torch.from_numpy(numbers))
        taken = torch.empty(len(places), self.dim, dtype=self.dtype)
        for number, values in enumerate(self.values):
            inside = torch.from_numpy(np.flatnonzero(parts == number))
            rows = torch.from_numpy(numbers[parts == number] - self._starts[number])
            taken.index_copy_(0, inside, values.index_select(0, rows))
        return taken

    def sample(self) -> Tensor:
        """(n, dim) unit rows."""
        random = generator(0, 0, Stream.ROTATION)
        return unit(self.take(np.sort(random.choice(len(self), min(len(self), SAMPLE), replace=False))))

    @property
    def largest(self) -> Tensor:
        """The tensor of most rows."""
        return max(self.values, key=len)


@dataclass
class Stage:
    """codes (n, width) of coordinates that follow those of the stage before, with the offset of `JoinCodes`; scale:
    what a code of one stands for. rests, errors (n + PADDED,): the lengths of what no stage so far codes, and of what
    codes so far lose; not too small."""

    codes: NDArray[np.uint8]
    rests: NDArray[np.float32]
    errors: NDArray[np.float32]
    scale: float


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of one thread, as measured with AVX-512; on other processors ratios are alike. Of a pair of rows in a
    tile: product + coordinate * width with codes. Of a pair that is looked at on its own: pair + byte * width with
    codes, score + value * dim in full. exact: of a row and a query, for each value, where all products are made."""

    product: float = 0.06
    coordinate: float = 0.0035
    pair: float = 15.0
    byte: float = 0.06
    score: float = 150.0
    value: float = 0.4
    exact: float = 0.017

    def closer(self, dim: int) -> float:
        return self.score + self.value * dim

    def most(self, dim: int) -> float:
        """That a pair may cost; with more, all products are no slower, though they see each pair twice."""
        return 0.7 * 2 * self.exact * dim


COSTS = Costs()


def measure_left(rows: JoinedRows, sample: Tensor, directions: Tensor, k: int) -> dict[int, float]:
    """Share of the pairs that so many coded coordinates leave."""
    probes = sample[torch.from_numpy(generator(0, 1, Stream.INDEX_PROBES).permutation(len(sample))[:_PROBES])]
    scores, _ = ExactSearch(RowTable(rows.largest)).search(probes, min(k + 1, len(rows.largest)))
    kth = torch.from_numpy(scores[:, -1].copy())
    seen = sample[:: max(1, len(sample) // _LOOKED_AT)]
    widest = min(MOST_CODES, rows.dim - 1, _MOST_BYTES // len(rows)) // _STEP * _STEP
    along, asked = (rotate(some, directions[: 1 + widest].float()) for some in (seen, probes))
    products, found = along[:, :1] @ asked[:, :1].T, {}
    for width in range(_STEP, widest + 1, _STEP):
        begin, end = 1 + width - _STEP, 1 + width
        products += along[:, begin:end] @ asked[:, begin:end].T
        rests = [(1 - some[:, :end].square().sum(1)).clamp_(min=0).sqrt_() for some in (along, asked)]
        coded = [some[:, 1:end].norm(dim=1) for some in (along, asked)]
        lost = 1.5 * coding_error(width) * coded[0][:, None] * coded[1]  # all rows have one scale
        bounds = products + rests[0][:, None] * rests[1] + lost
        found[width] = min(1.0, 2 * float((bounds >= kth).float().mean()))  # either row of a pair may want it
    return found


def choose_stages(left: dict[int, float], dim: int) -> tuple[int, ...]:
    """Widths of the stages, of which the last is for single pairs, and the one before it optional; none where all
    products are no slower."""
    costs, closer = COSTS, COSTS.closer(dim)
    best, chosen = costs.most(dim), tuple[int, ...]()
    for first, after_first in left.items():
        begin = costs.product + costs.coordinate * first
        tiles = 1 - (1 - after_first) ** 128  # that survive, if pairs did so alone
        for second, after_second in left.items():
            if second < first:
                continue
            between = tiles * (costs.product + costs.coordinate * (second - first)) if second > first else 0.0
            for last, after_last in left.items():
                if last <= second:
                    continue
                alone = after_second * (costs.pair + costs.byte * (last - second)) + after_last * closer
                if begin + between + alone < best:
                    best = begin + between + alone
                    chosen = (first, *((second - first,) if second > first else ()), last - second)
    return chosen


class JoinCodes:
    """leading, norms (n + PADDED,): of the rows' first coordinates, and the lengths of all that is coded. squares (n,):
    as ranking.py sums them."""

    def __init__(self, count: int, dim: int, sample: Tensor, directions: Tensor, widths: tuple[int, ...], largest: int):
        self.largest, self.offset, self.dim = largest, largest + 1, dim
        self._basis = turned(directions, widths)
        self._skew = skewness(self._basis)
        self._edges = np.cumsum([1, *widths]).tolist()
        self.slack = bound_margin((sum(widths),), dim, self._skew)
        along = rotate(sample, self._basis)
        self.stages = [
            Stage(
                np.empty((count, end - begin), np.uint8), _padded(count), _padded(count),
                _scale_of(along[:, begin:end], largest),
            )
            for begin, end in self._parts
        ]  # fmt: skip
        self.leading, self.norms = _padded(count), _padded(count)

    @property
    def _parts(self) -> list[tuple[int, int]]:
        return list(zip(self._edges[:-1], self._edges[1:], strict=True))

    def fill(self, rows: JoinedRows, workers: int, also: Callable[[NDArray[np.int64]], None]) -> None:
        """also: is called with the places of rows that were just read."""

        def encode(part: int, worker: int) -> None:
            places = np.arange(part * _PIECE, min(len(rows), (part + 1) * _PIECE))
            self._encode(slice(part * _PIECE, part * _PIECE + len(places)), unit(rows.take(places)))
            also(places)

        spread(encode, -(-len(rows) // _PIECE), workers)

    def _encode(self, where: slice, units: Tensor) -> None:
        along, lost = rotate(units, self._basis), torch.zeros(len(units), dtype=torch.float64)
        self.leading[where] = along[:, 0].numpy()
        for stage, (begin, end) in zip(self.stages, self._parts, strict=True):
            part = along[:, begin:end]
            codes = (part / stage.scale).round_().clamp_(-self.largest, self.largest)
            off = torch.linalg.vector_norm(torch.add(part, codes, alpha=-stage.scale), dim=1, dtype=torch.float64)
            # each difference is rounded by 2**-23 of its coordinate, or of its code if that is larger, at most
            off += 2.0**-21 * torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
            lost += off.square()
            stage.codes[where] = codes.add_(self.offset).to(torch.uint8).numpy()
            stage.errors[where] = (lost.sqrt() * UP).float().numpy()
            stage.rests[where] = (rest_norms(along[:, :end], self.dim, self._skew) * UP).float().numpy()
        norm = torch.linalg.vector_norm(along[:, 1:], dim=1, dtype=torch.float64) + lost.sqrt()
        self.norms[where] = (norm * UP).float().numpy()

    def set_order(self, order: NDArray[np.int64]) -> None:
        """order (n,): the present places of the rows."""
        for stage in self.stages:
            stage.codes = stage.codes[order]
        arrays = [self.leading, self.norms, *(each for stage in self.stages for each in (stage.rests, stage.errors))]
        for array in arrays:
            array[: len(order)] = array[order]

    def near_coordinates(self, places: NDArray[np.int64], count: int) -> Tensor:
        """(n, 1 + count) of the first coordinates, from their codes."""
        first = self.stages[0]
        coded = torch.from_numpy(first.codes[places, :count]).float().sub_(self.offset).mul_(first.scale)
        return torch.cat([torch.from_numpy(self.leading[places])[:, None], coded], 1)


def _scale_of(along: Tensor, largest: int) -> float:
    scale = float(along.abs().amax(1).quantile(_CLIPPED)) / largest
    return float(np.float32(max(scale, 1e-9)))  # as it is multiplied with


def _padded(count: int) -> NDArray[np.float32]:
    return np.zeros(count + PADDED, np.float32)


_CELL_ROWS, _FEWEST_CELLS, _MOST_CELLS = 200, 4, 2048
_TURNS, _LEARNT = 6, 32  # turns of k-means, and rows of a cell that it sees
_COORDINATES = 128  # that tell cells apart


@dataclass(frozen=True)
class Cells:
    """Rows that lie near each other. order (n,): the present places of the rows, cell by cell; edges (cells + 1,):
    where cells begin in that order. centres (cells, p)."""

    order: NDArray[np.int64]
    edges: NDArray[np.int64]
    centres: Tensor

    def near(self, count: int) -> NDArray[np.int64]:
        """(cells, count) of each cell the nearest ones, itself among them."""
        found = torch.cdist(self.centres, self.centres).topk(min(count, len(self.centres)), largest=False)
        near: NDArray[np.int64] = found.indices.numpy()
        return near


def find_cells(codes: JoinCodes, count: int, workers: int) -> Cells:
    """k-means, and in each cell the rows near its centre first."""
    cells = int(np.clip(count // _CELL_ROWS, _FEWEST_CELLS, _MOST_CELLS))
    chosen = generator(0, 0, Stream.BLOCK_ORDER).permutation(count)[: max(_LEARNT * cells, SAMPLE)]
    sample = codes.near_coordinates(chosen, _COORDINATES)
    centres = sample[:cells].clone()
    for _ in range(_TURNS):
        owners, _ = _nearest_centres(sample, centres, workers)
        sizes = torch.bincount(owners, minlength=cells)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, owners, sample)
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
    owners, nearness = (torch.empty(0, dtype=torch.int64), torch.empty(0))
    parts = [_nearest_centres(codes.near_coordinates(some, _COORDINATES), centres, workers)
             for some in np.array_split(np.arange(count), -(-count // (1 << 16)))]  # fmt: skip
    owners, nearness = (torch.cat(list(several)) for several in zip(*parts, strict=True))
    order = np.lexsort((-nearness.numpy(), owners.numpy()))
    edges = np.concatenate([[0], np.cumsum(np.bincount(owners.numpy(), minlength=cells))])
    return Cells(order, edges, centres)


def _nearest_centres(values: Tensor, centres: Tensor, workers: int) -> tuple[Tensor, Tensor]:
    owners, nearness = torch.empty(len(values), dtype=torch.int64), torch.empty(len(values))
    half, turned_centres = -0.5 * centres.square().sum(1), centres.T.contiguous()

    def look(part: int, worker: int) -> None:
        some = slice(part * _PIECE, (part + 1) * _PIECE)
        nearness[some], owners[some] = torch.addmm(half, values[some], turned_centres).max(1)

    spread(look, -(-len(values) // _PIECE), workers)
    return owners, nearness


def find_directions(sample: Tensor, workers: int) -> Tensor:
    """(dim, dim) float64; by several threads of torch, since a decomposition is not to be spread otherwise."""
    torch.set_num_threads(workers)
    try:
        return principal(sample)
    finally:
        torch.set_num_threads(1)

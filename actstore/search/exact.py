"""Exact nearest neighbours on the CPU: a blocked matrix product, and a running threshold for the k best.

Where that is faster, products in 16 bits narrow the rows down with a margin, and the few that are left are multiplied
in float32:

One query against float16 rows without a converted copy of them, which reads half the bytes: the compiled loops convert
in registers and multiply in float32. Without them it is torch's float16 matrix-vector product, where that is fast: it
sums in float32, and rounds query and result to float16.

Many queries in bfloat16, where the processor multiplies that faster: four times as fast as float32 here. Rows, queries
and products are rounded to 8 bits, sums are float32's. Rows whose cosines lie closer together than the margin gain
nothing, so that is given up where too many pairs are left.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from actstore.compute.tensors import spread, worker_threads
from actstore.search.compiled import address, kernels, least_seconds
from actstore.search.ranking import (
    Candidates,
    Neighbours,
    Pairs,
    near_best,
    padded,
    rank,
    rounding,
    score_pairs,
    stack,
    thin_out,
)
from actstore.search.table import (
    Mask,
    Metric,
    Rows,
    RowTable,
    SelectedRows,
    are_few,
    mask_of,
    parse_k,
    parse_metric,
    parse_rows,
    parse_vectors,
    unit,
)

if TYPE_CHECKING:
    from actstore.split import Split

_QUERIES = 1024  # in one pass over the rows
_SCORES = 1 << 18  # values of a block of scores, 1 MiB: in the cache when they are looked at
_BLOCKS_PER_WORKER = 4
_MOST_COARSE = 128  # pairs that bfloat16 may leave for a neighbour, beside a share of all; float32 leaves 40 to 70
_MOST_QUERIES = 2  # with more, a product of converted rows is no slower
_FP16_ROUNDED = 1.01 * 2.0**-11  # of a number in float16
_FP16_TRIED = 256  # rows
_MOST_NEIGHBOURS = 512  # with more, thresholds are so low that the margin leaves too many pairs
_MOST_LEFT = 0.005  # of all pairs, before the product in float32 is no slower
_BF16_ROUNDED = 1.01 * 2.0**-8  # of a number in bfloat16, as a share of it
_SHORTEST = 1e-20  # of rows: products below 1e-38 may count as zero
_BF16_TRIED = 256  # rows
_MOST_TIES = 1 << 16  # of some rows, before their thinning out is better


class ExactSearch:
    """rows: a split, read block by block, or a (rows, dim) float16 or float32 tensor. May be shared by threads.

    Memory beside the rows: 3 MiB per thread, 4 bytes per row for their norms, and 40 for each of some rows.
    """

    def __init__(self, rows: Split | Tensor | Any, metric: Metric = "cosine") -> None:
        self.table = rows if isinstance(rows, RowTable) else RowTable(rows)
        self.metric: Metric = parse_metric(metric)
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self._close_from = np.inf  # neighbours from which on cosines lie too close together for bfloat16
        self._lock = threading.Lock()

    def search(self, vectors: Any, k: int = 10, rows: Rows | None = None) -> Neighbours:
        """(n, dim) -> scores (n, k) float32 descending, rows (n, k) int64; equal scores by lower row.

        rows: ascending, distinct; only these are searched."""
        queries = parse_vectors(vectors, self.table.dim, self.metric)
        rows = None if rows is None else parse_rows(rows, len(self.table))
        k = parse_k(k, len(self.table) if rows is None else len(rows))
        if rows is not None and are_few(rows, self.table):
            if (direct := self._search_directly(queries, k, rows)) is not None:
                return direct
            scores, places = ExactSearch(SelectedRows(self.table, rows), self.metric).search(queries, k)
            return scores, rows[places]
        mask = None if rows is None else mask_of(rows, len(self.table))
        self.table.lengths()
        with worker_threads() as workers:
            batches = [queries[start : start + _QUERIES] for start in range(0, len(queries), _QUERIES)]
            found = (self.candidates(batch, k, workers, mask) for batch in batches)
            return stack([rank(self.table, batch, pairs, k, self.metric)
                          for batch, pairs in zip(batches, found, strict=True)], k)  # fmt: skip

    def _search_directly(self, queries: Tensor, k: int, rows: Rows) -> Neighbours | None:
        """One or two queries against some rows where they lie, without a copy; None where that is not possible."""
        count, table = len(queries), self.table
        if count > _MOST_QUERIES or self.metric != "cosine" or kernels() is None or table.in_memory() is None:
            return None
        table.lengths()
        owners = np.repeat(np.arange(count), len(rows))
        every = Pairs(np.tile(rows, count), owners, np.empty(0, np.float32))
        with worker_threads() as workers:
            scored = score_pairs(table, unit(queries), every, workers)
        kth = np.partition(scored.scores.reshape(count, len(rows)), len(rows) - k, axis=1)[:, len(rows) - k]
        nearest = near_best(scored, kth, rounding(table.dim))
        return rank(table, queries, nearest, k, self.metric) if len(nearest) <= _MOST_TIES else None

    def candidates(self, queries: Tensor, k: int, workers: int, mask: Mask | None = None, first: int = 0) -> Pairs:
        """Pairs that hold the k nearest of every query (n, dim), and what comes within rounding of them.

        Of the rows from `first` on, and of those alone where mask (rows,) is true."""
        units, most = unit(queries), np.inf
        coarse: Coarse | None = None
        if self.metric == "cosine":
            coarse = open_half(self.table, units)
            if coarse is None and k < self._close_from:
                coarse = BfloatQueries.of(self.table, units, k)
                most = np.inf if coarse is None else len(units) * (_MOST_COARSE * k + _MOST_LEFT * len(self.table))
        found = self._seen(queries, units, coarse, most, k, workers, mask, first)
        if coarse is not None and not coarse.is_coarse:
            return found.pairs()
        if coarse is not None and found.added <= most:
            return thin_out(self.table, units, found.pairs(), k, workers)
        if coarse is not None:
            self._close_from = min(self._close_from, k)
            found = self._seen(queries, units, None, np.inf, k, workers, mask, first)
        return found.pairs()

    def _seen(
        self, queries: Tensor, units: Tensor, coarse: Coarse | None, most: float, k: int,
        workers: int, mask: Mask | None, first: int,
    ) -> Candidates:  # fmt: skip
        """By products in float32, or coarse ones, which are given up where they leave more than `most` pairs."""
        table, count = self.table, len(queries)
        longest = float(table.lengths().max()) if self.metric == "inner" else 1.0
        margin = rounding(table.dim) * longest if coarse is None else coarse.margin
        found = Candidates(table, queries, k, margin, self.metric)
        directions = units.T.contiguous()  # (dim, queries)
        scales = None if self.metric == "inner" else table.scales()
        step = self._block_rows(count, workers)
        skipped = first // step  # whole blocks: they are what a compressed store decodes
        barred = None if mask is None else torch.from_numpy(~mask)[:, None]

        def score(part: int, worker: int) -> None:
            start, stop = max(first, (skipped + part) * step), min(len(table), (skipped + part + 1) * step)
            if found.added > most or (barred is not None and bool(barred[start:stop].all())):
                return
            values, out = self._buffer(worker, padded(stop - start), count)
            inside = out[: stop - start]
            if coarse is None:
                multiply(table.read(start, stop), directions, values, inside)
            else:
                coarse.multiply(table.read(start, stop), values, inside, worker)
            if scales is not None:
                inside.mul_(scales[start:stop])
            if barred is not None:
                inside.masked_fill_(barred[start:stop], -torch.inf)
            out[stop - start :] = -torch.inf
            found.add(out, start)

        with self._lock:
            spread(score, -(-len(table) // step) - skipped, workers)
        return found

    def _buffer(self, worker: int, rows: int, count: int) -> tuple[Tensor, Tensor]:
        """Of a worker, the same memory in every search: for converted rows, and for scores (rows, count)."""
        values, scores = self._buffers.get(worker, (torch.empty(0), torch.empty(0)))
        if scores.numel() < rows * count:
            values, scores = torch.empty(self.table.piece_rows * self.table.dim), torch.empty(rows * count)
            self._buffers[worker] = values, scores
        return values, scores[: rows * count].view(rows, count)

    def _block_rows(self, queries: int, workers: int) -> int:
        """Rows between two looks at the scores: whole segments, and enough blocks for every thread."""
        if self.table.block_rows is not None:
            return self.table.block_rows
        fitting = max(self.table.piece_rows, _SCORES // queries)
        shared = -(-len(self.table) // (_BLOCKS_PER_WORKER * workers))
        return padded(min(fitting, shared))


def multiply(rows: Tensor, directions: Tensor, buffer: Tensor, out: Tensor) -> None:
    """out (n, queries) = rows (n, dim) @ directions (dim, queries), converted to float32 piece by piece."""
    count, dim = rows.shape
    if rows.dtype == torch.float32:
        torch.mm(rows, directions, out=out)
        return
    step = max(1, buffer.numel() // dim)
    for start in range(0, count, step):
        stop = min(count, start + step)
        piece = buffer[: (stop - start) * dim].view(stop - start, dim).copy_(rows[start:stop])
        torch.mm(piece, directions, out=out[start:stop])


def open_half(table: RowTable, units: Tensor) -> HalfQueries | CompiledQueries | None:
    """For unit queries (n, dim); None where the conversion of rows is the better way."""
    if len(units) > _MOST_QUERIES or table.dtype != torch.float16:
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
        if len(units) <= _MOST_QUERIES or k > _MOST_NEIGHBOURS or not bfloat_pays(table.dim, count):
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


Coarse = CompiledQueries | HalfQueries | BfloatQueries  # products that need no converted copy of the rows

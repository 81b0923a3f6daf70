"""Exact nearest neighbours on the CPU: a blocked matrix product, and a running threshold for the k best."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from actstore.compute.threads import spread, worker_threads
from actstore.search.bfloat import MOST_LEFT, BfloatQueries
from actstore.search.compiled import kernels
from actstore.search.half import MOST_QUERIES, CompiledQueries, HalfQueries, open_half
from actstore.search.queries import Metric, parse_k, parse_metric, parse_vectors, unit
from actstore.search.ranking import Neighbours, Pairs, near_best, rank, rounding, stack
from actstore.search.scoring import score_pairs, thin_out
from actstore.search.selection import Mask, Rows, SelectedRows, are_few, mask_of, parse_rows
from actstore.search.sieve import Candidates, padded
from actstore.search.table import RowTable

if TYPE_CHECKING:
    from actstore.split import Split

_QUERIES = 1024  # in one pass over the rows
_SCORES = 1 << 18  # values of a block of scores, 1 MiB: in the cache when they are looked at
_BLOCKS_PER_WORKER = 4
_MOST_COARSE = 128  # pairs that bfloat16 may leave for a neighbour, beside a share of all; float32 leaves 40 to 70
_MOST_TIES = 1 << 16  # of some rows, before their thinning out is better
Coarse = CompiledQueries | HalfQueries | BfloatQueries  # products that need no converted copy of the rows


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
        if count > MOST_QUERIES or self.metric != "cosine" or kernels() is None or table.in_memory() is None:
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
                most = np.inf if coarse is None else len(units) * (_MOST_COARSE * k + MOST_LEFT * len(self.table))
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

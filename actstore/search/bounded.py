"""Exact nearest neighbours by cosine below the cost of all products, where leading coordinates tell rows apart.

Every row gets an upper bound of its score from a few coordinates (levels.py). The rows with the highest bounds are
scored in full, which gives each query a threshold; rows whose bound stays below it cannot be among the k nearest,
and the rest is bounded by more coordinates and then scored in full. Margins cover all rounding: see rotation.py.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.threads import spread, worker_threads
from actstore.search.exact import ExactSearch, multiply
from actstore.search.levels import Levels, Progress, build_levels, load_levels, rest_slack
from actstore.search.queries import parse_k, parse_vectors, unit
from actstore.search.ranking import Neighbours, Pairs, join, kth_best, rank, rounding, stack
from actstore.search.rotation import rotate, storage_margin
from actstore.search.sieve import COARSE, FINE, LEAST, maxima, padded, pairs_above
from actstore.search.table import RowTable

if TYPE_CHECKING:
    from actstore.split import Split

_QUERIES = 128  # in one pass
_BOUNDS = 1 << 26  # bounds held at a time: 256 MiB
_BLOCK_VALUES = 1 << 18  # converted or looked at while they are in the cache
_COLLECTED = 1 << 16  # rows whose bounds are looked through at a time
_GATHERED = 1024  # pairs whose rows are gathered at a time
_MOST_TIES = 1 << 18  # pairs that rounding leaves, before the exact search with its thinning out is better
_SHARED = 5e8  # multiplications; below, threads that start and stop cost more than they share: 15.8 ms for 11.5
_MOST_LEFT = 0.1  # of the pairs: with more, all products are no slower
Take = Callable[[NDArray[np.int64]], Tensor]  # row numbers (n,) -> (n, width)


class BoundedSearch:
    """rows: a split with a bounded index beside it, or a tensor (the index is then built in memory).

    Memory: the levels (`nbytes`, mapped where they are on disk), and 4 bytes per row and query, at most 256 MiB.
    """

    def __init__(self, rows: Split | Tensor | Any, levels: Levels | None = None) -> None:
        self.table = rows if isinstance(rows, RowTable) else RowTable(rows)
        if levels is None:
            levels = build_levels(self.table) if self.table.split is None else load_levels(self.table.split)
        self.levels = levels
        self.exact = ExactSearch(self.table)
        self.fell_back = 0  # queries that were searched by all products, since their bounds left too many rows
        self._bounds = torch.empty(0)
        self._lock = threading.Lock()

    @classmethod
    def build(cls, rows: Split | Tensor | Any, progress: Progress | None = None) -> BoundedSearch:
        """Make the index, and keep it beside the store where rows is a split. `progress` gets rows as they are done."""
        table = RowTable(rows)
        return cls(table, build_levels(table, progress))

    @property
    def prunes(self) -> bool:
        """Whether the bound pays on this data; else every search is the exact one."""
        return bool(self.levels.widths)

    @property
    def nbytes(self) -> int:
        return self.levels.nbytes

    def search(self, vectors: Any, k: int = 10) -> Neighbours:
        """As `ExactSearch.search` by cosine, with the same answers."""
        queries = parse_vectors(vectors, self.table.dim)
        k = parse_k(k, len(self.table))
        if not self.prunes or 2 * k > len(self.table) // COARSE:
            return self.exact.search(queries, k)
        self.table.lengths()
        with worker_threads() as workers:
            batches = [queries[start : start + _QUERIES] for start in range(0, len(queries), _QUERIES)]
            return stack([self._search(batch, k, workers) for batch in batches], k)

    def _search(self, queries: Tensor, k: int, workers: int) -> Neighbours:
        with self._lock:
            bounds = len(self.table) * self.levels.widths[0] * len(queries)  # multiplications of the first level
            found = _Pass(self, queries, k, workers if bounds > _SHARED else 1).run()
        if found is None:
            self.fell_back += len(queries)
            found = self.exact.candidates(queries, k, workers)
        return rank(self.table, queries, found, k, "cosine")

    def bounds_buffer(self, rows: int, queries: int) -> Tensor:
        """(rows, queries), the same memory in every search."""
        if self._bounds.numel() < rows * queries:
            self._bounds = torch.empty(rows * queries)
        return self._bounds[: rows * queries].view(rows, queries)


class _Pass:
    """One batch of queries."""

    def __init__(self, engine: BoundedSearch, queries: Tensor, k: int, workers: int) -> None:
        self.engine, self.table, self.levels = engine, engine.table, engine.levels
        self.k, self.workers = k, workers
        self.units = unit(queries)  # (queries, dim)
        self.coefficients = _coefficients(self.levels, self.units)  # (width, queries) each
        dim, p = self.table.dim, len(self.levels.directions)
        self.margin = storage_margin(p, dim) + 2 * rounding(dim)
        self.best = torch.full((len(queries), k), -torch.inf)  # scores of rows seen, the k best

    def run(self) -> Pairs | None:
        """None where the bounds leave too many."""
        span = padded(_BOUNDS // len(self.units))
        found = []
        for first in range(0, len(self.table), span):
            left = self._narrow(first, min(len(self.table), first + span))
            if left is None:
                return None
            found.append(self._score(left))
        scored = join(found)
        bound = kth_best(scored, len(self.units), self.k) - np.float32(2 * rounding(self.table.dim))
        nearest = scored.pick(scored.scores >= bound[scored.queries])
        return nearest if len(nearest) <= _MOST_TIES else None

    def _narrow(self, first: int, last: int) -> Pairs | None:
        """Pairs of rows first to last that the bounds cannot exclude."""
        bounds, fine, coarse = self._bound(first, last)
        self._raise_threshold(bounds, coarse, first)
        left = self._above(bounds, fine, coarse, first)
        return left if left is None or len(self.levels.widths) == 1 else self._bound_again(left)

    def _bound(self, first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """Upper bounds (rows, queries) from the first level, and their maxima over segments of rows."""
        count, rows = len(self.units), last - first
        bounds = self.engine.bounds_buffer(padded(rows), count)
        bounds[rows:] = -torch.inf
        fine, coarse = torch.empty(padded(rows) // FINE, count), torch.empty(padded(rows) // COARSE, count)
        step, width = self._block_rows(rows), self.levels.widths[0]
        piece = max(16, min(4096, 2 * _BLOCK_VALUES // width))
        buffers = [torch.empty(piece * width) for _ in range(self.workers)]

        def bound(part: int, worker: int) -> None:
            start, stop = part * step, min(rows, (part + 1) * step)
            values = self.levels.first[first + start : first + stop]
            multiply(values, self.coefficients[0], buffers[worker], bounds[start:stop])
            inner, outer = fine[start // FINE : padded(stop) // FINE], coarse[start // COARSE : padded(stop) // COARSE]
            maxima(bounds[start : padded(stop)], inner, outer)

        spread(bound, -(-rows // step), self.workers)
        return bounds, fine, coarse

    def _block_rows(self, rows: int) -> int:
        fitting = _BLOCK_VALUES // len(self.units)
        return padded(min(fitting, -(-rows // (2 * self.workers))))

    def _raise_threshold(self, bounds: Tensor, coarse: Tensor, first: int) -> None:
        """Score the rows with the highest bounds in full: nearly always the nearest are among them."""
        count = len(self.units)
        affordable = len(bounds) * self.levels.widths[0] // (20 * count * self.table.dim)  # 5% of the bounds' cost
        wanted = min(max(self.k + 4, min(4 * self.k + 32, affordable)), len(coarse))
        segments = coarse.T.topk(wanted, dim=1).indices  # (queries, wanted)
        inside = bounds.view(-1, COARSE, count)[segments, :, torch.arange(count)[:, None]]  # (queries, wanted, COARSE)
        place = inside.view(count, -1).topk(wanted, dim=1).indices.numpy()  # each segment has a row: never padding
        rows = np.take_along_axis(segments.numpy(), place // COARSE, 1) * COARSE + place % COARSE + first
        values = self.table.take(rows.ravel()).float().view(count, wanted, -1)
        scores = torch.bmm(values, self.units[:, :, None])[:, :, 0]  # (queries, wanted)
        scores *= self.table.scales()[torch.from_numpy(rows), 0]
        self.best = torch.cat([self.best, scores], 1).topk(self.k, dim=1).values

    def _threshold(self) -> NDArray[np.float32]:
        return np.maximum(self.best[:, -1].numpy() - np.float32(self.margin), LEAST)

    def _above(self, bounds: Tensor, fine: Tensor, coarse: Tensor, first: int) -> Pairs | None:
        """Pairs whose bound reaches the threshold, ordered by query; None where they are too many."""
        threshold, step = self._threshold(), _COLLECTED
        parts = -(-len(bounds) // step)
        found: list[Pairs] = [join([])] * parts
        left = [0]
        most = _MOST_LEFT * bounds.numel() + 64 * self.k * bounds.shape[1]

        def collect(part: int, worker: int) -> None:
            if left[0] <= most:
                start, stop = part * step, min(len(bounds), (part + 1) * step)
                segments = fine[start // FINE : stop // FINE], coarse[start // COARSE : stop // COARSE]
                found[part] = pairs_above(bounds[start:stop], *segments, threshold, first + start)
                left[0] += len(found[part])

        spread(collect, parts, self.workers)
        if left[0] > most:
            return None
        pairs = join(found)
        return pairs.pick(np.argsort(pairs.queries.astype(np.uint8), kind="stable"))  # numpy sorts bytes by radix

    def _bound_again(self, left: Pairs) -> Pairs:
        """Tighter bounds of single pairs, with the coordinates of the second level."""
        second = self.levels.second
        columns = self.coefficients[1].T.contiguous()
        more = self._gather(lambda rows: second.index_select(0, torch.from_numpy(rows)), columns, left)
        left = Pairs(left.rows, left.queries, left.scores + more)
        return left.pick(left.scores >= self._threshold()[left.queries])

    def _score(self, pairs: Pairs) -> Pairs:
        """With their scores in full."""
        scores = self._gather(self.table.take, self.units, pairs)
        return Pairs(pairs.rows, pairs.queries, scores * self.table.scales().numpy()[pairs.rows, 0])

    def _gather(self, take: Take, coefficients: Tensor, pairs: Pairs) -> NDArray[np.float32]:
        """(n,) products of each pair's row, as `take` gives it, with its query's coefficients (queries, width)."""
        edges = np.flatnonzero(np.diff(pairs.queries, prepend=-1, append=-1)).tolist()  # where a query begins
        out = torch.empty(len(pairs))
        shared = -(-len(pairs) // self.workers)
        step = min(
            _GATHERED, max(shared, _BLOCK_VALUES // coefficients.shape[1], 1)
        )  # little work is not worth a thread
        buffers = [torch.empty(step, coefficients.shape[1]) for _ in range(self.workers)]

        def multiply_pairs(part: int, worker: int) -> None:
            start, stop = part * step, min(len(pairs), (part + 1) * step)
            values = buffers[worker][: stop - start].copy_(take(pairs.rows[start:stop]))
            inside = edges[bisect_right(edges, start) : bisect_left(edges, stop)]
            for begin, end in pairwise([start, *inside, stop]):
                own = coefficients[pairs.queries[begin]]
                torch.mv(values[begin - start : end - start], own, out=out[begin:end])

        spread(multiply_pairs, -(-len(pairs) // step), self.workers)
        return out.numpy()


def _coefficients(levels: Levels, units: Tensor) -> list[Tensor]:
    """What the values of each level are multiplied by, of units (queries, dim): (width, queries) float32 per level."""
    along = rotate(units, levels.directions).numpy().T  # (p, queries)
    p, dim = levels.widths[0] - 1, units.shape[1]
    rests = [_query_rest(along[: width - 1], dim) for width in levels.widths]
    coefficients = [np.concatenate([along[:p], rests[0]])]
    if len(levels.widths) > 1:
        coefficients.append(np.concatenate([along[p:], -rests[0], rests[1]]))
    return [torch.from_numpy(one) for one in coefficients]


def _query_rest(along: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """(p, queries) -> (1, queries) norms of the rest, never too small."""
    square = np.maximum(1 - np.einsum("pq,pq->q", along, along, dtype=np.float64), 0) + rest_slack(len(along), dim)
    rest: NDArray[np.float32] = (np.sqrt(square) * (1 + 2.0**-20)).astype(np.float32)[None]
    return rest

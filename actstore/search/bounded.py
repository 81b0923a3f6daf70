"""Exact nearest neighbours by cosine below the cost of all products, where leading coordinates tell rows apart.

Every row gets an upper bound of its score from 8-bit codes of leading coordinates (levels.py). Of a few rows, those
that seem nearest are scored in full, which gives each query a threshold. Then all rows are passed over: what reaches
the threshold by the first level of codes is bounded again by the second, and what is still left is scored in full and
raises the threshold at once. Without compiled loops, or where rows are decoded, the pass is made in parts that grow,
and thresholds rise between them. Margins cover all rounding. Rows that were appended since are searched exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import worker_threads
from actstore.progress import Progress
from actstore.search.bounds import CompiledBounds, Ranges, open_bounds
from actstore.search.compiled import Kernels, kernels
from actstore.search.exact import ExactSearch
from actstore.search.levels import SINGLE_QUERIES, Levels, QueryCodes
from actstore.search.plan import build_levels, load_levels
from actstore.search.ranking import (
    LEAST,
    NO_PAIRS,
    Neighbours,
    Pairs,
    join,
    kth_best,
    near_best,
    rank,
    rounding,
    score_pairs,
    stack,
    tabled,
)
from actstore.search.shorter import ShortCodes
from actstore.search.table import Mask, Rows, RowTable, are_few, mask_of, parse_k, parse_rows, parse_vectors, unit
from actstore.streams.sampling import Stream, generator

if TYPE_CHECKING:
    from actstore.split import Split


_PAIRS = 1 << 16  # bounds of a range of rows
_RANGE_ROWS = (1024, 16_384)  # at least and at most
_RANGES, _SHARED_ROWS = 8, 256  # of a thread, and the rows of the shortest, where few rows are shared
_SAMPLE, _LEAST_SAMPLE = 4096, 1024  # rows that give the first thresholds, and a sixteenth of all where these are few
_FIRST, _GROWTH = 64, 8  # ranges of the first part; a part to the one before
_MOST_TIES = 1 << 18  # pairs that rounding leaves, before the exact search with its thinning out is better
_MOST_LEFT = 0.15  # of the pairs: with more, all products are no slower
_MOST_EXAMINED = 0.4  # likewise, where those are bounded again and scored at once
_MOST_PAIRS = 1 << 23  # that are kept at a time
_PRODUCTS_TO_SHARE = 5e7  # products of codes; below, threads that start and stop cost more than they share,
_ROWS_TO_SHARE = 4096  # unless so many rows, which wait for memory, lie apart


class QueryBatch:
    """queries (n, dim); rows: those searched, all of the index where None; mask: of the rows, instead."""

    def __init__(
        self, engine: BoundedSearch, queries: Tensor, k: int, workers: int, rows: Rows | None = None,
        mask: Mask | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.table, self.levels, self.k, self.mask = engine, engine.table, engine.levels, k, mask
        self.total = len(self.levels.first) if rows is None else len(rows)
        products = self.total * self.levels.widths[0] * len(queries)
        gathered = rows is not None and len(rows) > _ROWS_TO_SHARE
        self.workers = workers if products > _PRODUCTS_TO_SHARE or gathered else 1
        codes = engine.query_codes(queries, self.workers)
        shorter = None
        if len(queries) <= SINGLE_QUERIES:
            shorter = engine.shorter.asked(workers) if rows is None else engine.shorter.codes
        self.judges = shorter is not None and self.total == len(self.levels.first) and mask is None
        self.units, self.bounds = codes.units, open_bounds(self.levels, codes, rows, mask, shorter)

    def run(self) -> Pairs | None:
        """Pairs that hold the k nearest; None where the bounds leave too many."""
        least, most = _RANGE_ROWS
        if isinstance(self.bounds, CompiledBounds):  # whose ranges cost nothing: enough of them that no thread waits
            most = min(most, max(_SHARED_ROWS, self.total // (_RANGES * self.workers)))
        ranges, sample = _plan_ranges(self.total, len(self.units), self.k, (min(least, most), most))
        if self.mask is not None:
            ranges = ranges[[bool(self.mask[start:stop].any()) for start, stop in ranges]]
            sample = _sample(ranges, self.total, self.k)
        if isinstance(self.bounds, CompiledBounds) and self.table.in_memory() is not None:
            found = self.bounds.nearest(
                ranges, sample, self.table, self.units, self.k, self.workers, self._margin, self._most(_MOST_EXAMINED)
            )
            nearest, kth = found if found is not None else (None, None)
            if self.judges:
                self.engine.shorter.judge(len(self.units), self.bounds.left)
        else:
            nearest, kth = self._nearest_in_parts(ranges, sample), None
        if nearest is None:
            return None
        kth = kth_best(nearest, len(self.units), self.k) if kth is None else kth
        nearest = near_best(nearest, kth, rounding(self.table.dim))
        return nearest if len(nearest) <= _MOST_TIES else None

    def _most(self, share: float) -> float:
        """Pairs that may be left, before all products are no slower."""
        return len(self.units) * (share * self.total + 64 * self.k)

    def _nearest_in_parts(self, ranges: Ranges, sample: Ranges) -> Pairs | None:
        """What reaches the threshold by the first level is collected, and what seems nearest of it raises that before
        the next part."""
        top = self.k + 3
        self.best = torch.full((len(self.units), self.k), -torch.inf)  # scores of rows seen, the k best
        found = self._see(self.bounds.likely(sample, top, self.workers))  # those that have scores
        kept, most = NO_PAIRS, min(_MOST_PAIRS, self._most(_MOST_LEFT))
        for part in _growing(ranges):
            reached = self.bounds.reaching(part, self.threshold(), top, self.workers, most)
            if reached is None:
                return None
            found = join([found, self._see(self._new(reached[1], found))])
            kept = self.bounds.within(join([kept, reached[0]]), self.threshold(), self.workers)
        if len(kept) > most:
            return None
        if len(self.levels.widths) > 1 and len(kept) > 4 * self.levels.widths[1]:  # else the queries' codes cost more
            kept = self.bounds.within(kept, self.threshold(), self.workers, again=True)
        return join([found, score_pairs(self.table, self.units, self._new(kept, found), self.workers)])

    def threshold(self) -> NDArray[np.float32]:
        """(queries,) what a bound must reach: the canonical score of the k-th best seen is not below it."""
        return np.maximum(self.best[:, -1].numpy() - np.float32(self._margin), LEAST)

    @property
    def _margin(self) -> float:
        """How far scores are from the canonical ones, and what rounding adds when it is taken off."""
        return 1.01 * rounding(self.table.dim)

    def _see(self, pairs: Pairs) -> Pairs:
        """Pairs, ordered by query and never seen before, with their scores: the k best of all raise the threshold."""
        scored = score_pairs(self.table, self.units, pairs, self.workers)
        seen = torch.cat([self.best, tabled(scored, len(self.units), self.k)], 1)
        self.best = seen.topk(self.k, dim=1).values
        return scored

    def _new(self, pairs: Pairs, seen: Pairs) -> Pairs:
        """Pairs that are not among those seen, ordered by query."""
        keys, known = (np.sort(one.queries * len(self.table) + one.rows) for one in (pairs, seen))
        new = keys[known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] != keys]
        queries = new // len(self.table)
        return Pairs(new - queries * len(self.table), queries, np.empty(0, np.float32))


@lru_cache(maxsize=64)
def _plan_ranges(total: int, queries: int, k: int, rows: tuple[int, int]) -> tuple[Ranges, Ranges]:
    """All places, in an order that mixes a store that is sorted by class, since thresholds rise sooner then; and a
    sample of them. rows: of a range, at least and at most."""
    least, most = rows
    step = int(np.clip(_PAIRS // queries, max(least, 4 * k), max(most, 4 * k)))
    starts = np.arange(0, total, step)
    order = generator(0, 1, Stream.BLOCK_ORDER).permutation(len(starts))
    ranges = np.stack([starts, np.minimum(starts + step, total)], 1)[order]
    return ranges, _sample(ranges, total, k)


def _sample(ranges: Ranges, total: int, k: int) -> Ranges:
    """The beginnings of some ranges, more rows than neighbours are asked for."""
    wanted = int(np.clip(total // 16, max(_LEAST_SAMPLE, 4 * k), max(_SAMPLE, 4 * k)))
    lengths = ranges[:, 1] - ranges[:, 0]
    some = ranges[: 1 + int(np.searchsorted(np.cumsum(lengths), wanted))].copy()
    return np.stack([some[:, 0], np.minimum(some[:, 1], some[:, 0] + -(-wanted // len(some)))], 1)


def _growing(ranges: Ranges) -> Iterator[Ranges]:
    """Parts of ranges; a small one at the end is not worth a round of its own."""
    done, count = 0, _FIRST
    while done < len(ranges):
        end = done + count if len(ranges) - done >= 4 * count else len(ranges)
        yield ranges[done:end]
        done, count = end, count * _GROWTH


_QUERIES = 256  # in one pass
_FEWEST = 1024  # rows that are worth a pass


class BoundedSearch:
    """rows: a split with a bounded index beside it, or a tensor (the index is then built in memory).

    Memory: the levels (`nbytes`, mapped where they are on disk), and what their bounds leave.
    """

    def __init__(self, rows: Split | Tensor | Any, levels: Levels | None = None) -> None:
        self.table = rows if isinstance(rows, RowTable) else RowTable(rows)
        if levels is None:
            levels = build_levels(self.table) if self.table.split is None else load_levels(self.table.split)
        self.levels = levels
        self.exact = ExactSearch(self.table)
        self.shorter = ShortCodes(levels)
        self.fell_back = 0  # queries that were searched by all products, since their bounds left too many rows
        self._last: tuple[Kernels | None, Tensor, QueryCodes] | None = None
        self._lock = threading.Lock()

    @classmethod
    def build(cls, rows: Split | Tensor | Any, progress: Progress | None = None, again: bool = False) -> BoundedSearch:
        """Make the index, or extend the one of the first rows, and keep it beside the store where rows is a split.
        `progress` gets rows as they are done."""
        table = RowTable(rows)
        return cls(table, build_levels(table, progress, again))

    @property
    def prunes(self) -> bool:
        """Whether the bound pays on this data; else every search is the exact one."""
        return bool(self.levels.widths)

    @property
    def covered(self) -> int:
        """Rows in the index, the first ones; those that were appended since are searched exactly."""
        return len(self.levels.first)

    @property
    def nbytes(self) -> int:
        return self.levels.nbytes

    def search(self, vectors: Any, k: int = 10, rows: Rows | None = None) -> Neighbours:
        """As `ExactSearch.search` by cosine, with the same answers."""
        queries = parse_vectors(vectors, self.table.dim)
        rows = None if rows is None else parse_rows(rows, len(self.table))
        k = parse_k(k, len(self.table) if rows is None else len(rows))
        indexed = self.covered if rows is None else int(np.searchsorted(rows, self.covered))
        if not self.prunes or indexed < max(_FEWEST, 128 * k):
            return self.exact.search(queries, k, rows)
        self.table.lengths()
        few = None if rows is None or not are_few(rows, self.table) else rows[:indexed]
        mask = None if rows is None or few is not None else mask_of(rows, len(self.table))
        found: list[Neighbours] = []
        with worker_threads() as workers:
            for start in range(0, len(queries), _QUERIES):
                batch = queries[start : start + _QUERIES]
                pairs = QueryBatch(self, batch, k, workers, few, mask).run()
                if pairs is None:
                    break
                if self.covered < len(self.table):
                    pairs = join([pairs, self._appended(batch, k, workers, rows, mask)])
                found.append(rank(self.table, batch, pairs, k, "cosine"))
        left = queries[_QUERIES * len(found) :]  # of a batch that bounds do not help, and those after it
        if len(left):
            found.append(self.exact.search(left, k, rows))
            with self._lock:
                self.fell_back += len(left)
        return stack(found, k)

    def _appended(self, queries: Tensor, k: int, workers: int, rows: Rows | None, mask: Mask | None) -> Pairs:
        """Candidates among the rows that the index does not cover; each query may have fewer than k."""
        if rows is not None and mask is None:
            mask = mask_of(rows, len(self.table))
        return self.exact.candidates(queries, k, workers, mask, self.covered)

    def query_codes(self, queries: Tensor, workers: int) -> QueryCodes:
        """Those of the last queries (n, dim) are kept, since a batch is often searched for in one part of the rows
        after another, and a rotation costs as much as a search of some thousand rows."""
        last, loops = self._last, kernels()  # each processor has its own codes
        if last is None or last[0] is not loops or not torch.equal(last[1], queries):
            self._last = last = loops, queries.clone(), QueryCodes(unit(queries), self.levels, workers)
        return last[2]

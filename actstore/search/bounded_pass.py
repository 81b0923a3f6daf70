"""One batch of queries through the levels of a bounded index.

Of a few rows, those that seem nearest are scored in full, which gives each query a threshold. All rows are then passed
over in parts that grow: what reaches the threshold is kept, and what seems nearest of it raises the threshold again.
The second level of codes then bounds what was kept once more, and what is still left is scored in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.search.bounds import Ranges, open_bounds
from actstore.search.queries import unit
from actstore.search.ranking import NO_PAIRS, Pairs, join, kth_best, near_best, rounding, tabled
from actstore.search.scoring import score_pairs
from actstore.search.selection import Mask, Rows
from actstore.search.sieve import LEAST

if TYPE_CHECKING:
    from actstore.search.bounded import BoundedSearch

_PAIRS = 1 << 16  # bounds of a range of rows
_RANGE_ROWS = (1024, 16_384)  # at least and at most
_SAMPLE = 16_384  # rows that give the first thresholds
_FIRST, _GROWTH = 64, 8  # ranges of the first part; a part to the one before
_MOST_TIES = 1 << 18  # pairs that rounding leaves, before the exact search with its thinning out is better
_MOST_LEFT = 0.15  # of the pairs: with more, all products are no slower
_MOST_PAIRS = 1 << 23
_PRODUCTS_TO_SHARE = 3e8  # products of codes; below, threads that start and stop cost more than they share,
_ROWS_TO_SHARE = 4096  # unless so many rows, which wait for memory, lie apart


class Pass:
    """queries (n, dim); rows: those searched, all of the index where None; mask: of the rows, instead."""

    def __init__(
        self, engine: BoundedSearch, queries: Tensor, k: int, workers: int, rows: Rows | None = None,
        mask: Mask | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.table, self.levels, self.k, self.mask = engine, engine.table, engine.levels, k, mask
        self.total = len(self.levels.first) if rows is None else len(rows)
        self.units = unit(queries)  # (queries, dim)
        products = self.total * self.levels.widths[0] * len(queries)
        gathered = rows is not None and len(rows) > _ROWS_TO_SHARE
        self.workers = workers if products > _PRODUCTS_TO_SHARE or gathered else 1
        self.bounds = open_bounds(self.levels, engine.query_codes(self.units, self.workers), rows, mask)
        self.best = torch.full((len(queries), k), -torch.inf)  # scores of rows seen, the k best
        self.most = min(_MOST_PAIRS, _MOST_LEFT * self.total * len(queries) + 64 * k * len(queries))

    def run(self) -> Pairs | None:
        """Pairs that hold the k nearest; None where the bounds leave too many."""
        ranges, top = self._ranges(), self.k + 3
        few = max(1, _SAMPLE // int((ranges[:, 1] - ranges[:, 0]).max()))
        kept, found = NO_PAIRS, self._see(self.bounds.likely(ranges[:few], top, self.workers))
        for part in _growing(ranges):
            reached = self.bounds.reaching(part, self.threshold(), top, self.workers, self.most)
            if reached is None:
                return None
            found = join([found, self._see(self._new(reached[1], found))])
            kept = self.bounds.within(join([kept, reached[0]]), self.threshold(), self.workers)
        if len(kept) > self.most:
            return None
        if len(self.levels.widths) > 1 and len(kept) > 4 * self.levels.widths[1]:  # else the queries' codes cost more
            kept = self.bounds.within(kept, self.threshold(), self.workers, again=True)
        found = join([found, score_pairs(self.table, self.units, self._new(kept, found), self.workers)])
        nearest = near_best(found, kth_best(found, len(self.units), self.k), rounding(self.table.dim))
        return nearest if len(nearest) <= _MOST_TIES else None

    def threshold(self) -> NDArray[np.float32]:
        """(queries,) what a bound must reach: the canonical score of the k-th best seen is not below it."""
        lower = np.float32(1.01 * rounding(self.table.dim))
        return np.maximum(self.best[:, -1].numpy() - lower, LEAST)

    def _ranges(self) -> Ranges:
        """All rows, in an order that mixes a store that is sorted by class: thresholds rise sooner."""
        least, most = _RANGE_ROWS
        step = int(np.clip(_PAIRS // len(self.units), max(least, 4 * self.k), max(most, 4 * self.k)))
        starts = np.arange(0, self.total, step)
        ranges = np.stack([starts, np.minimum(starts + step, self.total)], 1)[self.engine.block_order(len(starts))]
        if self.mask is not None:
            ranges = ranges[[bool(self.mask[start:stop].any()) for start, stop in ranges]]
        return ranges

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


def _growing(ranges: Ranges) -> Iterator[Ranges]:
    """Parts of ranges; a small one at the end is not worth a round of its own."""
    done, count = 0, _FIRST
    while done < len(ranges):
        end = done + count if len(ranges) - done >= 4 * count else len(ranges)
        yield ranges[done:end]
        done, count = end, count * _GROWTH

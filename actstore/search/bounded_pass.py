"""One batch of queries through the levels of a bounded index.

Rows are passed over in parts that grow. Of the first, the rows with the highest bounds are scored in full, which gives
each query a threshold; of every other part only what reaches the threshold is kept, and its highest bounds raise it
again. The second level of codes then bounds what was kept once more, and what is still left is scored in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.search.bounds import Block, open_bounds
from actstore.search.queries import unit
from actstore.search.query_codes import QueryCodes
from actstore.search.ranking import Pairs, join, rounding
from actstore.search.scoring import score_pairs
from actstore.search.selection import Mask, Rows
from actstore.search.sieve import LEAST

if TYPE_CHECKING:
    from actstore.search.bounded import BoundedSearch

_PAIRS = 1 << 17  # bounds of a block: all of the first block's are looked at,
_BLOCK_ROWS = (1024, 16_384)  # which has at least and at most so many rows
_GROWTH = 8  # of a part to the next
_MOST_TIES = 1 << 18  # pairs that rounding leaves, before the exact search with its thinning out is better
_MOST_LEFT = 0.15  # of the pairs: with more, all products are no slower
_MOST_PAIRS = 1 << 23
_SHARED = 5e7  # products of codes; below, threads that start and stop cost more than they share


class Pass:
    """queries (n, dim); rows: those searched, all of the index where None; mask: of the rows, instead."""

    def __init__(
        self, engine: BoundedSearch, queries: Tensor, k: int, workers: int, rows: Rows | None = None,
        mask: Mask | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.table, self.levels, self.k, self.mask = engine, engine.table, engine.levels, k, mask
        self.total = len(self.levels.first) if rows is None else len(rows)
        self.units = unit(queries)  # (queries, dim)
        self.workers = workers if self.total * self.levels.widths[0] * len(queries) > _SHARED else 1
        self.bounds = open_bounds(self.levels, QueryCodes(queries, self.levels, self.workers), rows, mask)
        self.best = torch.full((len(queries), k), -torch.inf)  # scores of rows seen, the k best
        self.most = min(_MOST_PAIRS, _MOST_LEFT * self.total * len(queries) + 64 * k * len(queries))

    def run(self) -> Pairs | None:
        """Pairs that hold the k nearest; None where the bounds leave too many."""
        kept: list[Pairs] = []
        scored: list[Pairs] = []
        for number, part in enumerate(self._parts()):
            found = self.bounds.reaching(part, self.threshold(), self.workers, self.most if number else np.inf)
            if found is None:
                return None
            top, others = self._split_off_top(self._by_query(found), self.k + 3)
            scored.append(self._see(top))
            kept.append(self._within(others))
        left = self._by_query(self._within(join(kept)))
        if len(left) > self.most:
            return None
        if len(self.levels.widths) > 1 and len(left) > 4 * self.levels.widths[1]:  # else the queries' codes cost more
            left = self._within(self.bounds.again(left, self.workers))
            if len(left) > 4 * self.k * len(self.units):
                top, others = self._split_off_top(left, self.k)
                scored.append(self._see(top))
                left = self._within(others)
        found = join([*scored, score_pairs(self.table, self.units, left, self.workers)])
        bound = self._best(self._by_query(found))[:, -1].numpy() - np.float32(2 * rounding(self.table.dim))
        nearest = found.pick(found.scores >= bound[found.queries])
        return nearest if len(nearest) <= _MOST_TIES else None

    def threshold(self) -> NDArray[np.float32]:
        """(queries,) what a bound must reach: the canonical score of the k-th best seen is not below it."""
        lower = np.float32(1.01 * rounding(self.table.dim))
        return np.maximum(self.best[:, -1].numpy() - lower, LEAST)

    def _parts(self) -> Iterator[list[Block]]:
        """Blocks of rows, one and then more at a time, in an order that mixes a store that is sorted by class."""
        least, most = _BLOCK_ROWS
        step = int(np.clip(_PAIRS // len(self.units), max(least, 4 * self.k), max(most, 4 * self.k)))
        blocks = [(start, min(self.total, start + step)) for start in range(0, self.total, step)]
        blocks = [blocks[place] for place in self.engine.block_order(len(blocks))]
        if self.mask is not None:
            blocks = [block for block in blocks if self.mask[slice(*block)].any()]
        done, count = 0, 1
        while done < len(blocks):
            if len(blocks) - done < 2 * count:  # a small part at the end is not worth a round of its own
                count = len(blocks) - done
            yield blocks[done : done + count]
            done, count = done + count, count * _GROWTH

    def _see(self, pairs: Pairs) -> Pairs:
        """Pairs, ordered by query and never seen before, with their scores: the k best of all raise the threshold."""
        scored = score_pairs(self.table, self.units, pairs, self.workers)
        if len(pairs):
            self.best = torch.cat([self.best, self._best(scored)], 1).topk(self.k, dim=1).values
        return scored

    def _best(self, pairs: Pairs) -> Tensor:
        """(queries, k) the highest scores of pairs, ordered by query; minus infinity where there are fewer."""
        return self._tabled(pairs).topk(self.k, dim=1).values

    def _split_off_top(self, pairs: Pairs, count: int) -> tuple[Pairs, Pairs]:
        """Of pairs, ordered by query, the `count` with the highest scores of each, and the others."""
        table = self._tabled(pairs)
        top = table.topk(min(count, table.shape[1]), dim=1)
        owner, rank = torch.nonzero(top.values > -torch.inf, as_tuple=True)
        begins = np.searchsorted(pairs.queries, np.arange(len(self.units)))
        is_top = np.zeros(len(pairs), bool)
        is_top[top.indices[owner, rank].numpy() + begins[owner.numpy()]] = True
        return pairs.pick(is_top), pairs.pick(~is_top)

    def _tabled(self, pairs: Pairs) -> Tensor:
        """(queries, k at least) the scores of pairs, ordered by query, and minus infinity after them."""
        counts = np.bincount(pairs.queries, minlength=len(self.units))
        table = np.full((len(self.units), max(self.k, counts.max())), -np.inf, np.float32)
        table[pairs.queries, np.arange(len(pairs)) - (np.cumsum(counts) - counts)[pairs.queries]] = pairs.scores
        return torch.from_numpy(table)

    def _by_query(self, pairs: Pairs) -> Pairs:
        if len(self.units) == 1:
            return pairs
        return pairs.pick(np.argsort(pairs.queries.astype(np.uint8), kind="stable"))  # numpy sorts bytes by radix

    def _within(self, pairs: Pairs) -> Pairs:
        return pairs.pick(pairs.scores >= self.threshold()[pairs.queries])

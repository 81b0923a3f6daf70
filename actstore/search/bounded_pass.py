"""One batch of queries through the levels of a bounded index.

Of a first part of the rows, all bounds are computed and held; the rows with the highest ones are scored in full, which
gives thresholds. What reaches them is kept, of this part and of all others; the highest of these raise the thresholds
once more. The second level of codes then bounds what was kept again, and what is still left is scored in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.threads import spread
from actstore.search.integers import OFFSET, integers_pay, multiply_codes
from actstore.search.levels import TAIL
from actstore.search.queries import unit
from actstore.search.query_codes import QueryCodes
from actstore.search.ranking import Pairs, join, rounding
from actstore.search.sieve import LEAST

if TYPE_CHECKING:
    from actstore.search.bounded import BoundedSearch

_SUMS = 1 << 20  # products of a block,
_CODES = 1 << 22  # and bytes of its codes: in the cache of all cores; smaller blocks make threads wait for Python
_HELD = 1 << 23  # bounds of a part
_LOOKED_AT = 1 << 20  # bounds at a time
_SEGMENT = 64  # rows of which the highest bound is looked at first
_SPARSE = 0.08  # share of segments that reach a threshold, below which only they are looked through
_GATHERED = 1 << 20  # bytes of rows that are gathered at a time,
_FEW_PARTS = 8  # and how often one thread does it alone: two wait for each other in calls of Python
_MOST_TIES = 1 << 18  # pairs that rounding leaves, before the exact search with its thinning out is better
_MOST_LEFT = 0.15  # of the pairs: with more, all products are no slower
_MOST_PAIRS = 1 << 23
_SHARED = 5e7  # products of codes; below, threads that start and stop cost more than they share


class Pass:
    """queries (n, dim); rows: those searched, all of the index where None; mask: of the rows, instead."""

    def __init__(
        self,
        engine: BoundedSearch,
        queries: Tensor,
        k: int,
        workers: int,
        rows: NDArray[np.int64] | None = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        self.engine, self.table, self.levels, self.k = engine, engine.table, engine.levels, k
        self.rows, self.mask = rows, mask
        self.total = len(self.levels.first) if rows is None else len(rows)
        self.units = unit(queries)  # (queries, dim)
        width = self.levels.widths[0]
        self.workers = workers if self.total * width * len(queries) > _SHARED else 1
        self.coded = QueryCodes.of(queries, self.levels, engine.directions, self.workers)
        self.best = torch.full((len(queries), k), -torch.inf)  # scores of rows seen, the k best
        self.integers = integers_pay(width)
        self.coefficients = self.coded.coefficients(OFFSET if self.integers else 0)
        codes = _CODES if len(queries) > 1 else 4 * _CODES  # read once, by a product that is over sooner
        fitting = min(codes // width, _SUMS // len(queries), -(-self.total // self.workers))
        self.step = max(_SEGMENT, -(-fitting // _SEGMENT) * _SEGMENT)
        parts = -(-self.total // self.step)
        self.order = engine.block_order(parts)  # of the blocks: in a store sorted by class, thresholds rise sooner
        self.at_once = min(parts, max(1, _HELD // (self.step * len(queries))))  # blocks of the first part
        self.most = min(_MOST_PAIRS, _MOST_LEFT * self.total * len(queries) + 64 * k * len(queries))

    def run(self) -> Pairs | None:
        """Pairs that hold the k nearest; None where the bounds leave too many."""
        first, others = self.order[: self.at_once], self.order[self.at_once :]
        with self.engine.memory(len(first) * self.step * len(self.units)) as held:
            bounds = held.view(-1, len(self.units))
            highest = self._bound(first, bounds)
            self._see(self._highest(bounds, highest, first))
            pairs = self._reaching(bounds, highest, first)
        if len(others):
            reaching = self._reaching_of(others)
            if reaching is None:
                return None
            more = self._by_query(reaching)
            self._see(self._top(more))
            pairs = join([self._within(pairs), self._within(more)])
        if len(pairs) > self.most:
            return None
        pairs = self._by_query(pairs)
        if len(self.levels.widths) > 1:
            pairs = self._within(self._bound_again(pairs))
        scored = self._score(pairs)
        bound = self._best(scored)[:, -1].numpy() - np.float32(2 * rounding(self.table.dim))
        nearest = scored.pick(scored.scores >= bound[scored.queries])
        return nearest if len(nearest) <= _MOST_TIES else None

    def threshold(self) -> NDArray[np.float32]:
        """(queries,) what a bound must reach: the canonical score of the k-th best seen is not below it."""
        lower = np.float32(1.01 * rounding(self.table.dim))
        return np.maximum(self.best[:, -1].numpy() - lower, LEAST)

    def _bound(self, blocks: NDArray[np.int64], bounds: Tensor) -> Tensor:
        """The bounds of blocks over the queries' scales, into (rows, queries) -> the highest of each segment of rows.
        What fills the last block up is minus infinity."""
        highest = torch.empty(len(blocks) * self.step // _SEGMENT, len(self.units))

        def bound(place: int, worker: int) -> None:
            block = bounds[place * self.step : (place + 1) * self.step]
            block[self._bound_block(int(blocks[place]), block, self.coefficients) :] = -torch.inf
            segments = slice(place * self.step // _SEGMENT, (place + 1) * self.step // _SEGMENT)
            torch.amax(block.view(-1, _SEGMENT, len(self.units)), 1, out=highest[segments])

        spread(bound, len(blocks), self.workers)
        return highest

    def _bound_block(self, block: int, out: Tensor, coefficients: Tensor) -> int:
        """The bounds of a block's rows into out (step, queries), minus infinity where the mask is false -> how many."""
        start, stop = block * self.step, min(self.total, (block + 1) * self.step)
        out = out[: stop - start]
        mask = None if self.mask is None else self.mask[start:stop]
        if mask is not None and not mask.any():
            out.fill_(-torch.inf)
            return stop - start
        codes, factors = self.levels.first, self.levels.factors
        if self.rows is None:
            codes, factors = codes[start:stop], factors[start:stop]
        else:
            rows = self.rows[start:stop]
            codes = torch.from_numpy(np.take(codes.numpy(), rows, 0))
            factors = factors.index_select(0, torch.from_numpy(rows))
        is_far = self.rows is None and len(self.units) > 1
        multiply_codes(codes, self.coded.levels[0].codes, out, self.integers, is_far)
        out.mul_(factors[:, :1]).addmm_(factors, coefficients)
        if mask is not None:
            out.masked_fill_(torch.from_numpy(~mask)[:, None], -torch.inf)
        return stop - start

    def _reaching_of(self, blocks: NDArray[np.int64]) -> Pairs | None:
        """Pairs of blocks whose bounds reach the threshold as it is; None where they are too many."""
        limit, count = self._limit(), len(self.units)
        coefficients = self.coefficients.clone()
        coefficients[1] -= torch.from_numpy(limit)  # bounds less the limit: a comparison with zero is the fastest
        found = [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(blocks)
        buffers = [torch.empty(self.step, count) for _ in range(self.workers)]
        held = [0]

        def look(place: int, worker: int) -> None:
            if held[0] > self.most:
                return
            rows = self._bound_block(int(blocks[place]), buffers[worker], coefficients)
            gaps = buffers[worker][:rows].view(-1).numpy()
            reached = np.flatnonzero(gaps >= 0)
            found[place] = reached + place * self.step * count, gaps[reached]
            held[0] += len(reached)

        spread(look, len(blocks), self.workers)
        if held[0] > self.most:
            return None
        reached, gaps = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return self._pairs(reached, gaps + limit[reached % count], blocks)

    def _highest(self, bounds: Tensor, highest: Tensor, blocks: NDArray[np.int64]) -> Pairs:
        """Of each query the rows with the highest bounds, where they reach its threshold."""
        count = self.k + 3
        segments = highest.T.topk(min(count, len(highest)), dim=1).indices  # (queries, count)
        owners = torch.arange(len(self.units))[:, None]
        inside = bounds.view(-1, _SEGMENT, len(self.units))[segments, :, owners]  # (queries, count, SEGMENT)
        top = inside.flatten(1).topk(min(count, inside[0].numel()), dim=1)
        places = segments.gather(1, top.indices // _SEGMENT) * _SEGMENT + top.indices % _SEGMENT
        limit = torch.from_numpy(self._limit())[:, None]
        owner, rank = torch.nonzero((top.values >= limit) & (top.values > -torch.inf), as_tuple=True)
        return Pairs(self._rows(places[owner, rank].numpy(), blocks), owner.numpy(), top.values[owner, rank].numpy())

    def _limit(self) -> NDArray[np.float32]:
        """(queries,) the threshold in units of the bounds that are held."""
        return np.maximum(self.threshold() / self.coded.levels[0].scale, LEAST).astype(np.float32)

    def _rows(self, places: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row numbers of places among the bounds that are held."""
        block = places // self.step
        rows = places + (blocks[block] - block) * self.step
        return rows if self.rows is None else self.rows[rows]

    def _see(self, pairs: Pairs) -> None:
        """Score pairs, ordered by query and never seen before: the k best of all raise the threshold."""
        if len(pairs):
            self.best = torch.cat([self.best, self._best(self._score(pairs))], 1).topk(self.k, dim=1).values

    def _best(self, pairs: Pairs) -> Tensor:
        """(queries, k) the highest scores of pairs, ordered by query; minus infinity where there are fewer."""
        return self._tabled(pairs).topk(self.k, dim=1).values

    def _top(self, pairs: Pairs) -> Pairs:
        """Of pairs, ordered by query, those with the highest scores of each."""
        top = self._tabled(pairs).topk(self.k, dim=1)
        owner, rank = torch.nonzero(top.values > -torch.inf, as_tuple=True)
        begins = np.searchsorted(pairs.queries, np.arange(len(self.units)))
        return pairs.pick(top.indices[owner, rank].numpy() + begins[owner.numpy()])

    def _tabled(self, pairs: Pairs) -> Tensor:
        """(queries, k at least) the scores of pairs, ordered by query, and minus infinity after them."""
        counts = np.bincount(pairs.queries, minlength=len(self.units))
        table = np.full((len(self.units), max(self.k, counts.max())), -np.inf, np.float32)
        table[pairs.queries, np.arange(len(pairs)) - (np.cumsum(counts) - counts)[pairs.queries]] = pairs.scores
        return torch.from_numpy(table)

    def _by_query(self, pairs: Pairs) -> Pairs:
        return pairs.pick(np.argsort(pairs.queries.astype(np.uint8), kind="stable"))  # numpy sorts bytes by radix

    def _reaching(self, bounds: Tensor, highest: Tensor, blocks: NDArray[np.int64]) -> Pairs:
        """Pairs of these blocks whose bounds reach the threshold."""
        limit, count = self._limit(), len(self.units)
        segments = np.flatnonzero(highest.numpy() >= limit)
        if len(segments) < _SPARSE * highest.numel():
            segment = segments // count
            first = segment * (_SEGMENT * count) + segments - segment * count
            inside = first[:, None] + np.arange(0, _SEGMENT * count, count)
            reached = inside[bounds.view(-1).numpy()[inside] >= limit[segments - segment * count, None]]
        else:
            reached = self._look_through(bounds, limit)
        return self._pairs(reached, bounds.view(-1).numpy()[reached], blocks)

    def _pairs(self, places: NDArray[np.int64], bounds: NDArray[np.float32], blocks: NDArray[np.int64]) -> Pairs:
        """places: among the (rows, queries) bounds of blocks; bounds: there, over the queries' scales."""
        place = places // len(self.units)
        owner = places - place * len(self.units)  # numpy's divmod takes four times as long
        return Pairs(self._rows(place, blocks), owner, bounds * self.coded.levels[0].scale.astype(np.float32)[owner])

    def _look_through(self, bounds: Tensor, limit: NDArray[np.float32]) -> NDArray[np.int64]:
        """Where (rows, queries) bounds reach the limit (queries,), counted row by row."""
        step = -(-_LOOKED_AT // len(limit))
        found: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * -(-len(bounds) // step)

        def look(part: int, worker: int) -> None:
            block = bounds[part * step : (part + 1) * step].numpy()
            found[part] = np.flatnonzero(block >= limit) + part * step * len(limit)

        spread(look, len(found), self.workers)
        return np.concatenate(found)

    def _within(self, pairs: Pairs) -> Pairs:
        return pairs.pick(pairs.scores >= self.threshold()[pairs.queries])

    def _bound_again(self, left: Pairs) -> Pairs:
        """Tighter bounds of single pairs, with the codes of the second level."""
        second, codes, norms = self.levels.second.numpy(), self.coded.second_codes(), self.coded.second_norms()
        width, integers = second.shape[1], integers_pay(second.shape[1])
        excess = codes.sum(1, dtype=torch.int32).numpy().astype(np.float32) * (OFFSET if integers else 0)
        step, bounds = _GATHERED // width, np.empty(len(left), np.float32)
        # fresh memory costs more than to read
        buffers = [(np.empty((step, width), np.uint8), torch.empty(step, 1)) for _ in range(self.workers)]

        def again(part: slice, worker: int) -> None:
            rows, owners = left.rows[part], left.queries[part]
            taken = np.take(second, rows, 0, out=buffers[worker][0][: len(rows)], mode="clip")
            tails = taken[:, -TAIL:].copy().view(np.float32)
            stored, sums = torch.from_numpy(taken), buffers[worker][1][: len(rows)]
            for query, inside in _runs(owners):
                multiply_codes(stored[inside], codes[query][:, None], sums[inside], integers)
            terms = tails * norms[owners]
            terms[:, 0] *= sums.numpy()[:, 0] - excess[owners]
            bounds[part] = left.scores[part] + terms.sum(1)

        self._each(again, len(left), step)
        return Pairs(left.rows, left.queries, bounds)

    def _score(self, pairs: Pairs) -> Pairs:
        """With their scores in full; pairs are ordered by query."""
        step, scores = max(64, _GATHERED // (4 * self.table.dim)), np.empty(len(pairs), np.float32)
        buffers = [torch.empty(min(step, len(pairs)), self.table.dim) for _ in range(self.workers)]

        def score(part: slice, worker: int) -> None:
            rows = pairs.rows[part]
            values, out = buffers[worker][: len(rows)].copy_(self.table.take(rows)), torch.from_numpy(scores[part])
            for query, inside in _runs(pairs.queries[part]):
                torch.mv(values[inside], self.units[query], out=out[inside])

        self._each(score, len(pairs), step)
        return Pairs(pairs.rows, pairs.queries, scores * self.table.scales().numpy()[pairs.rows, 0])

    def _each(self, work: Callable[[slice, int], None], count: int, step: int) -> None:
        """work(slice, worker) for at most `step` of `count` pairs at a time; a few slices need no second thread."""
        parts = -(-count // step)
        spread(
            lambda part, worker: work(slice(part * step, min(count, (part + 1) * step)), worker),
            parts,
            self.workers if parts > _FEW_PARTS else 1,
        )


def _runs(queries: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Of ascending queries (n,): each one, and where it stands."""
    edges = [0, *(np.flatnonzero(queries[1:] != queries[:-1]) + 1).tolist(), len(queries)]
    for begin, end in pairwise(edges):
        yield int(queries[begin]), slice(begin, end)

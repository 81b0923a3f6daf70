"""One batch of queries through the levels of a bounded index."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.threads import spread
from actstore.search.integers import OFFSET, Products, integers_pay
from actstore.search.levels import TAIL
from actstore.search.queries import unit
from actstore.search.query_codes import QueryCodes
from actstore.search.ranking import Pairs, join, kth_best, rounding
from actstore.search.sieve import LEAST

if TYPE_CHECKING:
    from actstore.search.bounded import BoundedSearch

_SUMS = 1 << 18  # of a block of products,
_CODES = 1 << 20  # and bytes of its codes: both in the cache of a core
_GATHERED = 1 << 20  # bytes of rows that are gathered at a time
_MOST_TIES = 1 << 18  # pairs that rounding leaves, before the exact search with its thinning out is better
_MOST_LEFT = 0.15  # of the pairs: with more, all products are no slower
_MOST_PAIRS = 1 << 23
_SHARED = 5e7  # products of codes; below, threads that start and stop cost more than they share
_PILOT = 1024  # rows that give a query its first threshold
_LARGE = 1 << 17  # rows from which looking into cells pays, query by query
Multiply = Callable[[NDArray[np.int64], int, int], NDArray[np.float32]]  # rows, query, worker


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
        self.coded = QueryCodes.of(queries, self.levels, engine.directions)
        self.best = torch.full((len(queries), k), -torch.inf)  # scores of rows seen, the k best
        width = self.levels.widths[0]
        self.workers = workers if self.total * width * len(queries) > _SHARED else 1
        self.step = max(64, min(_CODES // width, _SUMS // len(queries)) // 64 * 64)
        integers = integers_pay(width)
        self.products = [Products(self.step, width, len(queries), integers) for _ in range(self.workers)]
        self.excess = self.products[0].excess(self.coded.levels[0].codes)

    def run(self) -> Pairs | None:
        """Pairs that hold the k nearest; None where the bounds leave too many."""
        self._pilot()
        left = self._bound()
        if left is None:
            return None
        left = self._by_query(left)
        self._raise(left, again=len(self.levels.widths) > 1)
        left = self._within(left)
        if len(self.levels.widths) > 1:
            left = self._bound_again(left)
            self._raise(left, again=False)
            left = self._within(left)
        scored = self._score(left)
        bound = kth_best(scored, len(self.units), self.k) - np.float32(2 * rounding(self.table.dim))
        nearest = scored.pick(scored.scores >= bound[scored.queries])
        return nearest if len(nearest) <= _MOST_TIES else None

    @property
    def _parts(self) -> int:
        return -(-self.total // self.step)

    def threshold(self) -> NDArray[np.float32]:
        """(queries,) what a bound must reach: the canonical score of the k-th best seen is not below it."""
        lower = np.float32(1.01 * rounding(self.table.dim))
        return np.maximum(self.best[:, -1].numpy() - lower, LEAST)

    def _pilot(self) -> None:
        """Score rows in full that are likely near: first thresholds."""
        count = 2 * self.k + 8
        if self.rows is None and self.total >= _LARGE:
            self._see(self._top(self._look_around(), count))
        else:
            self._see(self._look_through(count))

    def _look_through(self, count: int) -> Pairs:
        """Of a sample of the rows, those with the highest bounds for each query."""
        wanted = max(4 * _PILOT, 16 * self.k)
        chosen = np.arange(self.total) if self.rows is None else self.rows
        chosen = chosen[:: max(1, len(chosen) // wanted)]
        if self.mask is not None:
            chosen = chosen[self.mask[chosen]]
        codes, factors = self._take(chosen)
        products = Products(len(chosen), codes.shape[1], len(self.units), self.products[0].integers)
        bounds = products.multiply(codes, self.coded.levels[0].codes)
        bounds.addmm_(factors, self.coded.coefficients(np.zeros(len(self.units), np.float32), self.excess))
        bounds /= factors[:, 1:2]
        top = bounds.T.topk(min(len(chosen), count), dim=1)
        owners = np.repeat(np.arange(len(self.units)), top.indices.shape[1])
        return Pairs(chosen[top.indices.numpy().ravel()], owners, top.values.numpy().ravel())

    def _look_around(self) -> Pairs:
        """Rows of the cells around each query, with estimates of their scores."""
        wanted = max(_PILOT, 16 * self.k, self.total // 256)
        found: list[Pairs] = [join([])] * len(self.units)
        nearest = self.engine.cells.nearest(self.coded.along)

        def look(query: int, worker: int) -> None:
            rows = self.engine.cells.rows(nearest[query], wanted)
            rows = rows if self.mask is None else rows[self.mask[rows]]
            codes, factors = self._take(rows)
            single = self.coded.levels[0].codes[:, query : query + 1].contiguous()
            products = Products(len(rows), codes.shape[1], 1, self.products[0].integers)
            sums = products.multiply(codes, single)[:, 0].numpy() - float(self.excess[query])
            values = factors.numpy()
            leading = np.float32(self.coded.along[query, 0] / self.coded.levels[0].scale[query])
            found[query] = Pairs(rows, np.full(len(rows), query), (sums + values[:, 2] * leading) / values[:, 1])

        spread(look, len(found), self.workers)
        return join(found)

    def _take(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Codes and factors of single rows."""
        chosen = torch.from_numpy(rows)
        codes = torch.from_numpy(np.take(self.levels.first.numpy(), rows, 0))
        return codes, self.levels.factors.index_select(0, chosen)

    def _see(self, pairs: Pairs) -> None:
        """Score pairs, ordered by query, in full; what is better than the k best seen before raises the threshold."""
        counts = np.bincount(pairs.queries, minlength=len(self.units))
        if not len(pairs) or counts.max() < self.k:
            return
        if counts.min() == counts.max() and self.workers == 1:  # one product for all
            values = self.table.take(pairs.rows).float().view(len(self.units), counts[0], -1)
            table = torch.bmm(values, self.units[:, :, None])[:, :, 0].numpy()
            table *= self.table.scales().numpy()[pairs.rows, 0].reshape(table.shape)
        else:
            table = np.full((len(self.units), counts.max()), -np.inf, np.float32)
            places = np.arange(len(pairs)) - (np.cumsum(counts) - counts)[pairs.queries]
            table[pairs.queries, places] = self._score(pairs).scores
        own = torch.from_numpy(table).topk(self.k, dim=1).values
        # rows may have been seen before: both sets are not to be joined
        self.best = torch.where(own[:, -1:] > self.best[:, -1:], own, self.best)

    def _top(self, pairs: Pairs, count: int) -> Pairs:
        """The highest of each query; pairs are ordered by query."""
        edges = np.searchsorted(pairs.queries, np.arange(len(self.units) + 1)).tolist()
        chosen = []
        for begin, end in pairwise(edges):
            places = np.arange(begin, end)
            if len(places) > count:
                places = begin + np.argpartition(-pairs.scores[begin:end], count)[:count]
            chosen.append(places)
        return pairs.pick(np.concatenate(chosen))

    def _raise(self, pairs: Pairs, again: bool) -> None:
        """See the pairs with the highest bounds, which more codes choose from where there are some."""
        count = 2 * self.k + 8
        if again:
            pairs = self._bound_again(self._top(pairs, 8 * count))
        self._see(self._top(pairs, count))

    def _bound(self) -> Pairs | None:
        """Pairs whose bounds reach the threshold; None where they are too many."""
        threshold = self.threshold()
        coefficients = self.coded.coefficients(threshold, self.excess)
        scale = self.coded.levels[0].scale.astype(np.float32)
        found: list[Pairs] = [join([])] * self._parts
        held, order = [0], self.engine.block_order(self._parts)
        most = min(_MOST_PAIRS, _MOST_LEFT * self.total * len(self.units) + 64 * self.k * len(self.units))

        def bound(part: int, worker: int) -> None:
            if held[0] > most:
                return
            block = self._block(int(order[part]))
            if block is None:
                return
            first, codes, factors = block
            gaps = self.products[worker].multiply(codes, self.coded.levels[0].codes).addmm_(factors, coefficients)
            if self.mask is not None:
                gaps.masked_fill_(torch.from_numpy(~self.mask[first : first + len(gaps)])[:, None], -torch.inf)
            flat = gaps.view(-1).numpy()
            reached = np.flatnonzero(flat >= 0)
            place = reached // len(self.units)
            owner = reached - place * len(self.units)  # numpy's divmod takes four times as long
            bounds = threshold[owner] + flat[reached] * scale[owner] / factors.numpy()[place, 1]
            rows = place + first if self.rows is None else self.rows[place + first]
            found[part] = Pairs(rows, owner, bounds)
            held[0] += len(reached)

        spread(bound, self._parts, self.workers)
        return None if held[0] > most else join(found)

    def _block(self, part: int) -> tuple[int, Tensor, Tensor] | None:
        """Where it begins, its codes in the cache, and its factors; None where the mask leaves nothing of it."""
        start, stop = part * self.step, min(self.total, (part + 1) * self.step)
        if self.rows is not None:
            return start, *self._take(self.rows[start:stop])
        if self.mask is not None and not self.mask[start:stop].any():
            return None
        codes = self.levels.first[start:stop]
        # read once in order: the product walks through many rows at a time, which memory serves at half its speed
        codes.view(torch.int64).sum()
        return start, codes, self.levels.factors[start:stop]

    def _within(self, pairs: Pairs) -> Pairs:
        return pairs.pick(pairs.scores >= self.threshold()[pairs.queries])

    def _by_query(self, pairs: Pairs) -> Pairs:
        return pairs.pick(np.argsort(pairs.queries.astype(np.uint8), kind="stable"))  # numpy sorts bytes by radix

    def _bound_again(self, left: Pairs) -> Pairs:
        """Tighter bounds of single pairs, with the codes of the second level."""
        second, codes, norms = self.levels.second.numpy(), self.coded.second_codes(), self.coded.second_norms()
        width, integers = second.shape[1], integers_pay(second.shape[1])
        excess = codes.sum(1, dtype=torch.int32).numpy().astype(np.float32) * (OFFSET if integers else 0)
        step = _GATHERED // width
        buffers = [
            np.empty((step, width), np.uint8) for _ in range(self.workers)
        ]  # fresh memory costs more than to read
        products = [Products(step, width, 1, integers) for _ in range(self.workers)]

        def again(rows: NDArray[np.int64], query: int, worker: int) -> NDArray[np.float32]:
            taken = np.take(second, rows, 0, out=buffers[worker][: len(rows)], mode="clip")
            tails = taken[:, -TAIL:].copy().view(np.float32)
            found = products[worker].multiply(torch.from_numpy(taken), codes[query][:, None])
            sums = found.numpy()[:, 0] - excess[query]
            more: NDArray[np.float32] = norms[query, 0] * tails[:, 0] * sums + tails[:, 1:] @ norms[query, 1:]
            return more

        left = Pairs(left.rows, left.queries, left.scores + self._each_query(again, left, step))
        return self._within(left)

    def _score(self, pairs: Pairs) -> Pairs:
        """With their scores in full."""

        step = max(64, _GATHERED // (4 * self.table.dim))
        buffers = [torch.empty(step, self.table.dim) for _ in range(self.workers)]

        def score(rows: NDArray[np.int64], query: int, worker: int) -> NDArray[np.float32]:
            values = buffers[worker][: len(rows)].copy_(self.table.take(rows))
            products: NDArray[np.float32] = torch.mv(values, self.units[query]).numpy()
            return products

        scores = self._each_query(score, pairs, step)
        return Pairs(pairs.rows, pairs.queries, scores * self.table.scales().numpy()[pairs.rows, 0])

    def _each_query(self, multiply: Multiply, pairs: Pairs, step: int) -> NDArray[np.float32]:
        """(n,) what `multiply` gives for at most `step` rows of one query at a time; pairs are ordered by query."""
        edges = np.flatnonzero(np.diff(pairs.queries, prepend=-1, append=-1)).tolist()  # where a query begins
        out = np.empty(len(pairs), np.float32)

        def each(part: int, worker: int) -> None:
            start, stop = part * step, min(len(pairs), (part + 1) * step)
            inside = edges[bisect_right(edges, start) : bisect_left(edges, stop)]
            for begin, end in pairwise([start, *inside, stop]):
                out[begin:end] = multiply(pairs.rows[begin:end], int(pairs.queries[begin]), worker)

        spread(each, -(-len(pairs) // step), self.workers)  # little work is one part, which needs no second thread
        return out

"""Bounds of a batch of queries from the codes of an index, and which pairs reach a limit.

Two ways to the same: compiled loops that write down nothing but what reaches the limit, or torch's products of codes
with a pass over all of them.
"""

from __future__ import annotations

import ctypes
import threading
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import spread
from actstore.search.compiled import OFFSET, Batch, Closer, address, integers_pay, kernels, multiply_codes
from actstore.search.levels import TAIL, Levels, QueryCodes
from actstore.search.ranking import LEAST, NO_PAIRS, Pairs, highest, join, runs
from actstore.search.shorter import Shorter
from actstore.search.table import Mask, Rows, RowTable

_GATHERED = 1 << 20  # bytes of rows that are gathered at a time
_PAIRS_TO_SHARE = 4096  # pairs, below which one thread looks at them

Ranges = NDArray[np.int64]  # (n, 2) places of rows, from and to
_RANGES_AT_ONCE = 16
_ROOM = (1 << 16, 1 << 20)  # for an eighth of the pairs of a thread, for at least and at most so many,
_BLOCK_ROWS = 128  # and for those of so many rows more, which loops pass over at a time: loops.h, ROWS_IN_CACHE


class Bounds:
    """rows: the numbers of those that are searched, all where None; mask: of the rows, instead. A place is a row's
    position among those that are searched. Pairs have bounds as their scores."""

    def __init__(self, levels: Levels, queries: QueryCodes, rows: Rows | None = None, mask: Mask | None = None) -> None:
        self.levels, self.queries, self.rows, self.mask = levels, queries, rows, mask

    def reaching(
        self, ranges: Ranges, threshold: NDArray[np.float32], top: int, workers: int, most: float
    ) -> tuple[Pairs, Pairs] | None:
        """Pairs whose bound is not below the threshold (queries,), and of each query the `top` of them that are most
        likely near, in order of queries. None where there are more than `most`."""
        limits = self._scaled(threshold)
        step = max(1, min(_RANGES_AT_ONCE, len(ranges) // (4 * workers) if workers > 1 else len(ranges)))
        parts = [ranges[start : start + step] for start in range(0, len(ranges), step)]
        found: list[tuple[Pairs, Pairs]] = []
        held = [0] * workers

        def look(part: int, worker: int) -> None:
            if sum(held) <= most:
                part_found = self._look(parts[part], limits, top)
                found.append(part_found)
                held[worker] += len(part_found[0])

        spread(look, len(parts), workers)
        pairs, likely = (join(list(several)) for several in zip(*found, strict=True))
        if len(pairs) > most:
            return None
        return pairs, highest(likely, len(self.queries), top)

    def likely(self, ranges: Ranges, top: int, workers: int) -> Pairs:
        """Of each query the `top` rows that are most likely near, in order of queries."""
        everything = np.full(len(self.queries), LEAST)
        found: list[Pairs] = []

        def look(part: int, worker: int) -> None:
            found.append(self._look(ranges[part::workers].copy(), everything, top, keep=False)[1])

        spread(look, min(workers, len(ranges)), workers)
        return highest(join(found), len(self.queries), top)

    def within(self, pairs: Pairs, threshold: NDArray[np.float32], workers: int, again: bool = False) -> Pairs:
        """Those of the pairs that still reach the threshold, `again` by the tighter bounds of both levels."""
        step = -(-len(pairs) // (4 * workers)) if len(pairs) > _PAIRS_TO_SHARE else len(pairs)
        if again:
            self.queries.second  # noqa: B018 - made once, before threads ask for it
        parts = [pairs.pick(slice(start, start + step)) for start in range(0, len(pairs), max(1, step))]
        kept: list[Pairs] = [NO_PAIRS] * len(parts)

        def look(part: int, worker: int) -> None:
            kept[part] = self._within(parts[part], threshold, again)

        spread(look, len(parts), workers)
        return join(kept)

    def _scaled(self, threshold: NDArray[np.float32]) -> NDArray[np.float32]:
        """Thresholds on bounds over the queries' scales."""
        return np.maximum(threshold / self.queries.first.scale, LEAST).astype(np.float32)

    def _look(self, ranges: Ranges, limits: NDArray[np.float32], top: int, keep: bool = True) -> tuple[Pairs, Pairs]:
        """limits: on bounds over the queries' scales. keep: the pairs that reach them, beside those that are likely."""
        raise NotImplementedError

    def _within(self, pairs: Pairs, threshold: NDArray[np.float32], again: bool) -> Pairs:
        raise NotImplementedError


_kept = threading.local()
Room = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]


def _room(pairs: int) -> Room:
    """For rows, queries and scores of at least so many pairs. Each thread keeps the largest that it had, 20 MB at most:
    fresh memory cost a quarter of a search of some thousand rows."""
    held: Room | None = getattr(_kept, "room", None)
    if held is None or len(held[0]) < pairs:
        _kept.room = held = np.empty(pairs, np.int64), np.empty(pairs, np.int64), np.empty(pairs, np.float32)
    return held


class CompiledBounds(Bounds):
    """See kernels.c for the order of the arrays."""

    def __init__(
        self, levels: Levels, queries: QueryCodes, rows: Rows | None = None, mask: Mask | None = None,
        shorter: Shorter | None = None,
    ) -> None:  # fmt: skip
        super().__init__(levels, queries, rows, mask)
        self._mask, self._shorter = None if mask is None else mask.view(np.uint8), shorter
        self.left = 0  # pairs that the short codes left
        # kept, since the batch holds addresses alone, and a thread with the same queries may replace `queries.lanes`
        self._lane_codes = lanes = queries.lanes
        self._lanes = len(lanes.excess)
        self._batch = Batch(
            address(levels.first), address(levels.factors), levels.first.shape[1], address(rows), address(self._mask),
            address(lanes.codes), address(lanes.excess), address(lanes.coefficients), address(lanes.scales),
            len(queries), lanes.panels, address(shorter),
        )  # fmt: skip

    def nearest(
        self, ranges: Ranges, sample: Ranges, table: RowTable, units: Tensor, k: int, workers: int, margin: float,
        most: float,
    ) -> tuple[Pairs, NDArray[np.float32]] | None:  # fmt: skip
        """With their scores, pairs that hold the k nearest of every query, and the k-th best scores (queries,).

        The rows of the sample that seem nearest are scored, which gives each query a threshold; what reaches that by
        all levels is scored at once, and raises it. margin: of scores to the canonical ones. None where more than
        `most` pairs are left by the first level, or an eighth of them by all."""
        whole, scales, count, loops = table.in_memory(), table.scales(), len(self.queries), kernels()
        assert whole is not None
        assert loops is not None
        thresholds = np.full(count, LEAST)
        second = self.queries.second if len(self.levels.widths) > 1 else None
        closer = Closer(
            address(self.levels.second) if second else None, self.levels.widths[-1],
            *((address(second.codes), address(second.excess), address(second.norms)) if second else (None,) * 3),
            address(whole), whole.dtype == torch.float16, table.dim, address(units), address(scales),
            address(thresholds), margin,
        )  # fmt: skip
        limits, asked = self._filled(thresholds), (ctypes.addressof(self._batch), ctypes.addressof(closer))
        estimates, likely = self._heap(k + 3)
        self._bound_rows(sample, limits.copy(), (estimates, likely), keep=False)
        highest, rows = self._heap(k)
        loops.raise_thresholds(
            *asked, k + 3, address(estimates), address(likely), k, address(highest), address(rows), address(limits)
        )
        pairs = count * int((ranges[:, 1] - ranges[:, 0]).sum())
        room = int(np.clip(pairs // (8 * workers), *_ROOM)) + _BLOCK_ROWS * self._lanes
        shared = np.zeros(16, np.int64)  # the next range, and in another line of the cache how many were examined, left
        found: list[tuple[Pairs, NDArray[np.float32]]] = []

        def look(part: int, worker: int) -> None:
            rows, owners, scores = _room(room)
            highest, their_rows = self._heap(k)
            left = loops.nearest_rows(
                *asked, address(ranges), len(ranges), address(shared), address(shared[8:]), int(most), address(limits),
                address(rows), address(owners), address(scores), room, k, address(highest), address(their_rows),
            )  # fmt: skip
            found.append((Pairs(rows[:left].copy(), owners[:left].copy(), scores[:left].copy()), highest[:count]))

        spread(look, workers, workers)
        self.left = int(shared[9])
        if shared[8] > most:
            return None
        best = np.concatenate([highest for _, highest in found], 1)
        return join([pairs for pairs, _ in found]), -np.partition(-best, k - 1, axis=1)[:, k - 1]

    def _look(self, ranges: Ranges, limits: NDArray[np.float32], top: int, keep: bool = True) -> tuple[Pairs, Pairs]:
        estimates, likely = heap = self._heap(top)
        pairs = self._bound_rows(ranges, self._filled(limits), heap, keep=keep)
        owner, place = np.nonzero(estimates > -np.inf)
        return pairs, Pairs(likely[owner, place], owner, estimates[owner, place])

    def _filled(self, limits: NDArray[np.float32]) -> NDArray[np.float32]:
        """(lanes,) those of the queries (queries,), and then what nothing reaches."""
        filled = np.full(self._lanes, np.inf, np.float32)
        filled[: len(limits)] = limits
        return filled

    def _heap(self, size: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Of each lane (lanes, size): the highest scores so far, and their rows."""
        shape = self._lanes, size
        return np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64)

    def _bound_rows(
        self, ranges: Ranges, limits: NDArray[np.float32], heap: tuple[NDArray[np.float32], NDArray[np.int64]],
        keep: bool = True,
    ) -> Pairs:  # fmt: skip
        highest_scores, highest_rows = heap
        room = len(self.queries) * int((ranges[:, 1] - ranges[:, 0]).sum()) if keep else 0
        rows, owners, bounds = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.float32)
        found = kernels().bound_rows(  # type: ignore[union-attr]
            ctypes.addressof(self._batch), address(ranges), len(ranges), address(limits),
            address(rows) if keep else None, address(owners), address(bounds), highest_scores.shape[1],
            address(highest_scores), address(highest_rows),
        )  # fmt: skip
        return Pairs(rows[:found].copy(), owners[:found].copy(), bounds[:found].copy())  # of the room for all of them

    def _within(self, pairs: Pairs, threshold: NDArray[np.float32], again: bool) -> Pairs:
        kept = Pairs(pairs.rows.copy(), pairs.queries.copy(), pairs.scores.copy())
        second, queries = (self.levels.second, self.queries.second) if again else (None, None)
        found = kernels().bound_pairs(  # type: ignore[union-attr]
            address(second), 0 if second is None else second.shape[1] - TAIL, address(kept.rows), address(kept.queries),
            address(kept.scores), len(kept), *(None, None, None) if queries is None else
            (address(queries.codes), address(queries.excess), address(queries.norms)), address(threshold),
        )  # fmt: skip
        return kept.pick(slice(0, found))


class TorchBounds(Bounds):
    def __init__(self, levels: Levels, queries: QueryCodes, rows: Rows | None = None, mask: Mask | None = None) -> None:
        super().__init__(levels, queries, rows, mask)
        # tried before threads ask for it
        self._integers, self._integers_again = integers_pay(levels.widths[0]), integers_pay(levels.widths[-1])
        self._coefficients = queries.coefficients(OFFSET if self._integers else 0)

    def _look(self, ranges: Ranges, limits: NDArray[np.float32], top: int, keep: bool = True) -> tuple[Pairs, Pairs]:
        find = partial(self._reached, limits=limits) if keep else partial(self._top, count=top)
        pairs = join([find(int(start), int(stop)) for start, stop in ranges])
        return pairs, highest(pairs, len(self.queries), top)

    def _reached(self, start: int, stop: int, limits: NDArray[np.float32]) -> Pairs:
        bounds, count = self._multiply(start, stop), len(self.queries)
        reached = np.flatnonzero((bounds >= torch.from_numpy(limits)).view(-1).numpy())
        place = reached // count  # numpy's divmod takes four times as long
        return self._pairs(start, place, reached - place * count, bounds.view(-1).numpy()[reached])

    def _top(self, start: int, stop: int, count: int) -> Pairs:
        top = self._multiply(start, stop).topk(min(count, stop - start), dim=0)  # (count, queries)
        rank, owner = torch.nonzero(top.values > -torch.inf, as_tuple=True)
        return self._pairs(start, top.indices[rank, owner].numpy(), owner.numpy(), top.values[rank, owner].numpy())

    def _pairs(
        self, start: int, places: NDArray[np.int64], owners: NDArray[np.int64], bounds: NDArray[np.float32]
    ) -> Pairs:
        """places: counted from start on."""
        rows = places + start if self.rows is None else self.rows[places + start]
        return Pairs(rows, owners, bounds * self.queries.first.scale.astype(np.float32)[owners])

    def _multiply(self, start: int, stop: int) -> Tensor:
        """(stop - start, queries) bounds over the queries' scales, minus infinity where the mask is false."""
        codes, factors, count = self.levels.first, self.levels.factors, len(self.queries)
        if self.rows is None:
            codes, factors = codes[start:stop], factors[start:stop]
        else:
            codes = torch.from_numpy(np.take(codes.numpy(), self.rows[start:stop], 0))
            factors = factors.index_select(0, torch.from_numpy(self.rows[start:stop]))
        out = torch.empty(stop - start, count)
        multiply_codes(codes, self.queries.first.codes, out, self._integers, far=self.rows is None and count > 1)
        out.mul_(factors[:, :1]).addmm_(factors, self._coefficients)
        if self.mask is not None:
            out.masked_fill_(torch.from_numpy(~self.mask[start:stop])[:, None], -torch.inf)
        return out

    def _within(self, pairs: Pairs, threshold: NDArray[np.float32], again: bool) -> Pairs:
        left = pairs.pick(pairs.scores >= threshold[pairs.queries])
        if not again:
            return left
        left = left.pick(np.argsort(left.queries, kind="stable"))
        bounds = left.scores.copy()
        second, queries = self.levels.second.numpy(), self.queries.second
        width = second.shape[1] - TAIL
        integers, query_codes = self._integers_again, torch.from_numpy(queries.codes)
        step = _GATHERED // second.shape[1]
        for start in range(0, len(left), step):
            part = slice(start, start + step)
            taken, owners = np.take(second, left.rows[part], 0), left.queries[part]
            codes, sums = torch.from_numpy(taken[:, :width].copy()), torch.empty(len(taken), 1)
            for query, inside in runs(owners):
                multiply_codes(codes[inside], query_codes[query][:, None], sums[inside], integers)
            terms = taken[:, width:].copy().view(np.float32) * queries.norms[owners]
            terms[:, 0] *= sums.numpy()[:, 0] - (queries.excess[owners].astype(np.float32) if integers else 0)
            bounds[part] += terms.sum(1)
        reaches = bounds >= threshold[left.queries]
        return Pairs(left.rows[reaches], left.queries[reaches], bounds[reaches])


def open_bounds(
    levels: Levels, queries: QueryCodes, rows: Rows | None = None, mask: Mask | None = None,
    shorter: Shorter | None = None,
) -> Bounds:  # fmt: skip
    """shorter: those of a few queries (shorter.py)."""
    if kernels() is None:
        return TorchBounds(levels, queries, rows, mask)
    return CompiledBounds(levels, queries, rows, mask, shorter)

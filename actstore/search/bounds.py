"""Bounds of a batch of queries from the codes of an index, and which pairs reach a limit.

Two ways to the same: compiled loops that write down nothing but what reaches the limit, or torch's products of codes
with a pass over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.compute.threads import spread
from actstore.search.compiled import address, kernels
from actstore.search.integers import OFFSET, integers_pay, multiply_codes
from actstore.search.levels import FACTORS, TAIL, Levels
from actstore.search.query_codes import QueryCodes
from actstore.search.ranking import Pairs
from actstore.search.selection import Mask, Rows

_FEW = 4  # queries, each of which is multiplied with a row on its own
_LANES = 16  # queries of a register, two of which are multiplied at a time
_GATHERED = 1 << 20  # bytes of rows that are gathered at a time
_SHARED = 2048  # pairs, below which one thread bounds them again

Found = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]  # rows, queries, bounds over their scales
Block = tuple[int, int]  # places of rows, from and to


class Bounds:
    """rows: the numbers of those that are searched, all where None; mask: of the rows, instead. A place is a row's
    position among those that are searched."""

    def __init__(self, levels: Levels, queries: QueryCodes, rows: Rows | None = None, mask: Mask | None = None) -> None:
        self.levels, self.queries, self.rows, self.mask = levels, queries, rows, mask

    def reaching(
        self, blocks: Sequence[Block], threshold: NDArray[np.float32], workers: int, most: float
    ) -> Pairs | None:
        """Pairs whose bound is not below the threshold (queries,); None where they are more than `most`."""
        scale = self.queries.first.scale
        with np.errstate(over="ignore"):
            limits = np.maximum(threshold / scale, np.finfo(np.float32).min).astype(np.float32)
        prepared = self._prepare(limits)
        found: list[Found | None] = [None] * len(blocks)
        held = [0]

        def look(place: int, worker: int) -> None:
            if held[0] <= most:
                part = self._look(*blocks[place], prepared)
                found[place] = part
                held[0] += len(part[0])

        spread(look, len(blocks), workers)
        if held[0] > most:
            return None
        rows, owners, bounds = (np.concatenate(arrays) for arrays in zip(*filter(None, found), strict=True))
        return Pairs(rows, owners, bounds * scale.astype(np.float32)[owners])

    def again(self, pairs: Pairs, workers: int) -> Pairs:
        """Pairs, ordered by query, with the tighter bounds of both levels."""
        scores = pairs.scores.copy()
        step = max(256, -(-len(pairs) // (4 * workers))) if len(pairs) > _SHARED else max(1, len(pairs))
        parts = [slice(start, start + step) for start in range(0, len(pairs), step)]
        spread(lambda part, worker: self._again(pairs.pick(parts[part]), scores[parts[part]]), len(parts), workers)
        return Pairs(pairs.rows, pairs.queries, scores)

    def _prepare(self, limits: NDArray[np.float32]) -> NDArray[np.float32]:
        raise NotImplementedError

    def _look(self, start: int, stop: int, limits: NDArray[np.float32]) -> Found:
        raise NotImplementedError

    def _again(self, pairs: Pairs, bounds: NDArray[np.float32]) -> None:
        """bounds: those of the first level, to be tightened in place."""
        raise NotImplementedError


class CompiledBounds(Bounds):
    """See kernels.c for the order of the arrays."""

    def __init__(self, levels: Levels, queries: QueryCodes, rows: Rows | None = None, mask: Mask | None = None) -> None:
        super().__init__(levels, queries, rows, mask)
        self._mask = None if mask is None else mask.view(np.uint8)
        codes, count = queries.first.codes.numpy(), len(queries)  # (width, count)
        self._panels = 0 if count <= _FEW else 2 * -(-count // (2 * _LANES))
        lanes = self._panels * _LANES or count
        filled = np.zeros((len(codes), lanes), np.int8)
        filled[:, :count] = codes
        self._excess = OFFSET * filled.sum(0, dtype=np.int32)
        # (panels, width / 4, lanes, 4), or (count, width)
        ordered = filled.reshape(-1, 4, self._panels, _LANES).transpose(2, 0, 3, 1) if self._panels else filled.T
        self._codes: NDArray[np.int8] = np.ascontiguousarray(ordered)
        self._coefficients = np.zeros((FACTORS, lanes), np.float32)
        self._coefficients[:, :count] = queries.coefficients(0)

    def _prepare(self, limits: NDArray[np.float32]) -> NDArray[np.float32]:
        filled = np.full(len(self._excess), np.inf, np.float32)
        filled[: len(limits)] = limits
        return filled

    def _look(self, start: int, stop: int, limits: NDArray[np.float32]) -> Found:
        most = (stop - start) * len(self.queries)
        rows, owners, bounds = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.float32)
        first, factors = self.levels.first, self.levels.factors
        found = kernels().bound_rows(  # type: ignore[union-attr]
            address(first), address(factors), first.shape[1], address(self.rows), start, stop, address(self._mask),
            address(self._codes), address(self._excess), address(self._coefficients), address(limits),
            len(self.queries), self._panels, address(rows), address(owners), address(bounds),
        )  # fmt: skip
        return rows[:found].copy(), owners[:found].copy(), bounds[:found].copy()

    def _again(self, pairs: Pairs, bounds: NDArray[np.float32]) -> None:
        second, queries = self.levels.second, self.queries.second
        kernels().bound_pairs(  # type: ignore[union-attr]
            address(second), second.shape[1] - TAIL, address(pairs.rows), address(pairs.queries), len(pairs),
            address(queries.codes), address(queries.excess), address(queries.norms), address(bounds),
        )  # fmt: skip


class TorchBounds(Bounds):
    def __init__(self, levels: Levels, queries: QueryCodes, rows: Rows | None = None, mask: Mask | None = None) -> None:
        super().__init__(levels, queries, rows, mask)
        self._integers = integers_pay(levels.widths[0])
        self._coefficients = queries.coefficients(OFFSET if self._integers else 0)

    def _prepare(self, limits: NDArray[np.float32]) -> NDArray[np.float32]:
        return limits

    def _look(self, start: int, stop: int, limits: NDArray[np.float32]) -> Found:
        codes, factors, count = self.levels.first, self.levels.factors, len(self.queries)
        rows = None if self.rows is None else self.rows[start:stop]
        if rows is None:
            codes, factors = codes[start:stop], factors[start:stop]
        else:
            codes = torch.from_numpy(np.take(codes.numpy(), rows, 0))
            factors = factors.index_select(0, torch.from_numpy(rows))
        out = torch.empty(stop - start, count)
        multiply_codes(codes, self.queries.first.codes, out, self._integers, far=rows is None and count > 1)
        out.mul_(factors[:, :1]).addmm_(factors, self._coefficients)
        if self.mask is not None:
            out.masked_fill_(torch.from_numpy(~self.mask[start:stop])[:, None], -torch.inf)
        reached = np.flatnonzero((out >= torch.from_numpy(limits)).view(-1).numpy())
        place = reached // count
        bounds = out.view(-1).numpy()[reached]
        return (place + start if rows is None else rows[place]), reached - place * count, bounds

    def _again(self, pairs: Pairs, bounds: NDArray[np.float32]) -> None:
        second, queries = self.levels.second.numpy(), self.queries.second
        width = second.shape[1] - TAIL
        integers, query_codes = integers_pay(width), torch.from_numpy(queries.codes)
        step = _GATHERED // second.shape[1]
        for start in range(0, len(pairs), step):
            part = slice(start, start + step)
            taken, owners = np.take(second, pairs.rows[part], 0), pairs.queries[part]
            codes, sums = torch.from_numpy(taken[:, :width].copy()), torch.empty(len(taken), 1)
            for query, inside in runs(owners):
                multiply_codes(codes[inside], query_codes[query][:, None], sums[inside], integers)
            terms = taken[:, width:].copy().view(np.float32) * queries.norms[owners]
            terms[:, 0] *= sums.numpy()[:, 0] - (queries.excess[owners].astype(np.float32) if integers else 0)
            bounds[part] += terms.sum(1)


def open_bounds(levels: Levels, queries: QueryCodes, rows: Rows | None = None, mask: Mask | None = None) -> Bounds:
    return (TorchBounds if kernels() is None else CompiledBounds)(levels, queries, rows, mask)


def runs(queries: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Of ascending queries (n,): each one, and where it stands."""
    edges = [0, *(np.flatnonzero(queries[1:] != queries[:-1]) + 1).tolist(), len(queries)]
    for begin, end in pairwise(edges):
        yield int(queries[begin]), slice(begin, end)

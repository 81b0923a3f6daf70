"""Which scores of a block can matter: maxima over segments of rows first, single scores only where needed."""

from __future__ import annotations

import threading

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import spread
from actstore.search.compiled import address, kernels
from actstore.search.queries import Metric
from actstore.search.ranking import Pairs, canonical_scores, join, kth_best, near_best, order_pairs, rounding, runs
from actstore.search.table import RowTable

_GATHERED = 1 << 18  # values of rows that are taken at a time
_FEW_PARTS = 8  # which one thread does alone: two wait for each other in calls of Python
_FEW_BYTES = 1 << 21  # of rows, below which one thread multiplies them


def score_pairs(table: RowTable, units: Tensor, pairs: Pairs, workers: int) -> Pairs:
    """Pairs, ordered by query, with their cosines in float32; units (queries, dim)."""
    scores, whole = np.empty(len(pairs), np.float32), table.in_memory()
    scales = table.scales()
    if whole is None or kernels() is None:
        _by_torch(table, units, pairs, scores, workers)
        return Pairs(pairs.rows, pairs.queries, scores * scales.numpy()[pairs.rows, 0])
    is_shared = len(pairs) * table.dim * whole.element_size() > _FEW_BYTES
    step = max(1, -(-len(pairs) // (4 * workers)) if is_shared else len(pairs))

    def score(part: int, worker: int) -> None:
        some = slice(part * step, (part + 1) * step)
        rows, owners, out = pairs.rows[some], pairs.queries[some], scores[some]
        kernels().score_pairs(  # type: ignore[union-attr]
            address(whole), whole.dtype == torch.float16, table.dim, address(rows), address(owners), len(rows),
            address(units), address(scales), address(out),
        )  # fmt: skip

    spread(score, -(-len(pairs) // step), workers)
    return Pairs(pairs.rows, pairs.queries, scores)


def thin_out(table: RowTable, units: Tensor, pairs: Pairs, k: int, workers: int) -> Pairs:
    """Pairs that can be among the k best of their query, with their cosines; units (queries, dim)."""
    ordered = pairs.pick(np.argsort(pairs.queries, kind="stable"))  # those of a query are multiplied at once
    scored = score_pairs(table, units, ordered, workers)
    return near_best(scored, kth_best(scored, len(units), k), rounding(table.dim))


def _by_torch(table: RowTable, units: Tensor, pairs: Pairs, scores: NDArray[np.float32], workers: int) -> None:
    step = max(64, _GATHERED // table.dim)
    parts = -(-len(pairs) // step)
    workers = workers if parts > _FEW_PARTS else 1
    buffers = [torch.empty(min(step, len(pairs)), table.dim) for _ in range(workers)]  # fresh memory costs more to use

    def score(part: int, worker: int) -> None:
        some = slice(part * step, (part + 1) * step)
        rows = pairs.rows[some]
        values, out = buffers[worker][: len(rows)].copy_(table.take(rows)), torch.from_numpy(scores[some])
        for query, inside in runs(pairs.queries[some]):
            torch.mv(values[inside], units[query], out=out[inside])

    spread(score, parts, workers)


FINE, COARSE = 8, 64  # rows of a segment
LEAST = np.float32(np.finfo(np.float32).min)  # any score; what pads a block is below it
_DENSE = 0.1  # share of coarse segments from which looking at every score is faster
_MOST_PAIRS = 1 << 20  # candidates held before they are thinned out


def padded(rows: int) -> int:
    """Scores come in whole segments; what is beyond the last row is minus infinity."""
    return -(-rows // COARSE) * COARSE


def pairs_above(
    scores: Tensor, fine: Tensor, coarse: Tensor, threshold: NDArray[np.float32], first_row: int = 0
) -> Pairs:
    """Pairs of (rows, queries) scores that reach the query's threshold (queries,); fine, coarse: maxima of segments."""
    place, owner = np.divmod(np.flatnonzero(coarse.numpy() >= threshold), coarse.shape[1])
    if len(place) > _DENSE * coarse.numel():
        place, owner = _reached(scores, threshold)
        return Pairs(place + first_row, owner, scores.numpy()[place, owner])
    found = np.empty(0, np.float32)
    for level, size in ((fine, COARSE // FINE), (scores, FINE)):
        places = (place * size)[:, None] + np.arange(size)  # (n, size)
        values = level.numpy().ravel().take(places * scores.shape[1] + owner[:, None])
        inside = np.flatnonzero(values >= threshold[owner, None])
        place, owner, found = places.ravel()[inside], owner[inside // size], values.ravel()[inside]
    return Pairs(place + first_row, owner, found)


def _reached(scores: Tensor, threshold: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and queries of (rows, queries) scores that reach the threshold; looked at eight by eight."""
    flags = (scores >= torch.from_numpy(threshold)).view(-1)  # rows come in multiples of COARSE
    words = np.flatnonzero(flags.view(torch.int64).numpy())
    inside = np.flatnonzero(flags.numpy().reshape(-1, 8)[words])
    return np.divmod(words[inside // 8] * 8 + inside % 8, scores.shape[1])


class Candidates:
    """Every pair that may be among the k best, and a threshold (queries,) that rises with what was seen.

    margin: how far a score may be from the canonical one. Shared by threads.
    """

    def __init__(self, table: RowTable, vectors: Tensor, k: int, margin: float, metric: Metric) -> None:
        self._table, self._vectors, self._k, self._margin, self._metric = table, vectors, k, margin, metric
        self._best = torch.full((len(vectors), k), -torch.inf)  # lower bounds of the k best
        self._threshold = np.full(len(vectors), LEAST)
        self._parts: list[Pairs] = []
        self._held = 0
        self.added = 0  # pairs so far, those that were dropped again included
        self._lock = threading.Lock()

    def add(self, scores: Tensor, first_row: int) -> None:
        """Scores (n, queries) of consecutive rows from first_row on, padded."""
        fine = scores.view(-1, FINE, scores.shape[1]).amax(1)
        coarse = fine.view(-1, COARSE // FINE, scores.shape[1]).amax(1)
        if not (coarse.numpy() >= self._threshold).any():
            return
        with self._lock:
            # the k-th best of maxima over different rows is never above the k-th best of all rows
            self._best = torch.cat([self._best, coarse.T], 1).topk(self._k, dim=1).values
            self._threshold = np.maximum(self._best[:, -1].numpy() - np.float32(2 * self._margin), LEAST)
            found = pairs_above(scores, fine, coarse, self._threshold, first_row)
            self._parts.append(found)
            self._held += len(found)
            self.added += len(found)
            if self._held > _MOST_PAIRS:
                self._thin_out()

    def pairs(self) -> Pairs:
        """What is left with the final threshold: every one of the k best, and whatever ties with them."""
        held = join(self._parts)
        return near_best(held, kth_best(held, len(self._vectors), self._k), self._margin)

    def _thin_out(self) -> None:
        kept = self.pairs()
        if len(kept) > _MOST_PAIRS // 2:  # thousands of near ties: only their canonical order can tell them apart
            exact = canonical_scores(self._table, self._vectors, kept, self._metric)
            kept = order_pairs(exact, kept, self._k)
        self._parts, self._held = [kept], len(kept)

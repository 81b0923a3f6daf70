"""Cosines of single pairs of a row and a query, and the order of neighbours, the same whatever engine found them.

Engines find candidates with fast arithmetic and a margin for its rounding. Here every candidate's score is
computed once more in float64, by additions in a fixed order, and rounded to float32; equal scores are ordered
by row. So block sizes, threads, libraries and devices cannot change an answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import spread
from actstore.search.compiled import address, kernels
from actstore.search.table import Metric, RowTable

_PIECE = 512  # pairs scored at a time: 16 MB of float64 at 2048 dimensions

Neighbours = tuple[NDArray[np.float32], NDArray[np.int64]]  # scores (n, k) descending, rows (n, k)


@dataclass(frozen=True)
class Pairs:
    """Candidates: row rows[i] for query queries[i], with an engine's own score; all (n,).

    Arrays and not tensors: most of them are small, and a call of numpy takes a tenth of one of torch.
    """

    rows: NDArray[np.int64]
    queries: NDArray[np.int64]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, which: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Pairs:
        return Pairs(self.rows[which], self.queries[which], self.scores[which])


NO_PAIRS = Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))


def join(parts: list[Pairs]) -> Pairs:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NO_PAIRS
    rows, queries = (np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "queries"))
    return Pairs(rows, queries, np.concatenate([part.scores for part in parts]))


def tabled(pairs: Pairs, queries: int, least: int) -> Tensor:
    """(queries, least or more) the scores of pairs, ordered by query, and minus infinity after them."""
    counts = np.bincount(pairs.queries, minlength=queries)
    table = np.full((queries, max(least, counts.max(initial=0))), -np.inf, np.float32)
    table[pairs.queries, np.arange(len(pairs)) - (np.cumsum(counts) - counts)[pairs.queries]] = pairs.scores
    return torch.from_numpy(table)


def highest(pairs: Pairs, queries: int, count: int) -> Pairs:
    """Of each query the `count` pairs with the highest scores, ordered by query."""
    if queries > 1:
        pairs = pairs.pick(np.argsort(pairs.queries.astype(np.uint16), kind="stable"))  # numpy sorts these by radix
    top = tabled(pairs, queries, count).topk(count, dim=1)
    owner, rank = torch.nonzero(top.values > -torch.inf, as_tuple=True)
    begins = np.searchsorted(pairs.queries, np.arange(queries))
    return pairs.pick(top.indices[owner, rank].numpy() + begins[owner.numpy()])


def runs(queries: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Of ascending queries (n,): each one, and where it stands."""
    edges = [0, *(np.flatnonzero(queries[1:] != queries[:-1]) + 1).tolist(), len(queries)]
    for begin, end in pairwise(edges):
        yield int(queries[begin]), slice(begin, end)


def kth_best(pairs: Pairs, queries: int, k: int) -> NDArray[np.float32]:
    """(queries,) the k-th highest score of each query; minus infinity where it has fewer pairs."""
    order = np.lexsort((-pairs.scores, pairs.queries))
    counts = np.bincount(pairs.queries, minlength=queries)
    place = np.cumsum(counts) - counts + k - 1
    kth = np.full(queries, -np.inf, np.float32)
    enough = counts >= k
    kth[enough] = pairs.scores[order[place[enough]]]
    return kth


def near_best(pairs: Pairs, kth: NDArray[np.float32], margin: float) -> Pairs:
    """Pairs that can be among the k best: kth (queries,) is the score of the k-th best, and scores may be off by the
    margin."""
    bound = kth - np.float32(2 * margin)
    return pairs.pick(pairs.scores >= bound[pairs.queries])


def canonical_scores(table: RowTable, vectors: Tensor, pairs: Pairs, metric: Metric) -> NDArray[np.float32]:
    """(n,) of the pairs, from the rows as they are stored; a row of zeros has cosine 0 with everything."""
    whole, compiled = table.in_memory(), kernels() is not None
    if whole is None or not compiled:
        dots, squares = _sums(table, vectors, pairs)
    else:
        dots, squares = _sums_compiled(whole, vectors, pairs)
    if metric == "inner":
        return dots.astype(np.float32)
    if compiled:
        own = np.arange(len(vectors))
        asked = _sums_compiled(vectors, vectors, Pairs(own, own, np.empty(0, np.float32)))[1]
    else:
        asked = fold(vectors.numpy().astype(np.float64) ** 2)
    both = np.sqrt(squares) * np.sqrt(asked)[pairs.queries]
    cosines: NDArray[np.float64] = np.divide(dots, both, out=np.zeros(len(pairs)), where=both > 0)
    return cosines.astype(np.float32)


def _sums(table: RowTable, vectors: Tensor, pairs: Pairs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(n,) of the products of each row with its query, and of its squares."""
    exact, sums = vectors.numpy().astype(np.float64), np.empty((2, len(pairs)))
    for start in range(0, len(pairs), _PIECE):
        part = slice(start, start + _PIECE)
        rows = table.take(pairs.rows[part]).double().numpy()  # (n, dim)
        # float16 or 32 times float32 is exact in float64
        sums[0, part], sums[1, part] = fold(rows * exact[pairs.queries[part]]), fold(rows * rows)
    return sums[0], sums[1]


def _sums_compiled(whole: Tensor, vectors: Tensor, pairs: Pairs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # all of them named, so that they live until the call is over
    rows, owners = np.ascontiguousarray(pairs.rows), np.ascontiguousarray(pairs.queries)
    asked, sums, room = vectors.contiguous(), np.empty((2, len(pairs))), np.empty(2 * whole.shape[1])
    kernels().fold_pairs(  # type: ignore[union-attr]
        address(whole), whole.dtype == torch.float16, whole.shape[1], address(rows), address(owners), len(pairs),
        address(asked), address(room), address(sums[0]), address(sums[1]),
    )  # fmt: skip
    return sums[0], sums[1]


def fold(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, dim) -> (n,) sums, halves added onto halves: no library decides in which order. Overwrites its input."""
    held, width = torch.from_numpy(values), values.shape[1]
    while width > 1:
        half = width // 2
        held[:, :half].add_(held[:, width - half : width])  # numpy takes four times as long for short rows
        width -= half
    return values[:, 0].copy()


def rank(table: RowTable, vectors: Tensor, pairs: Pairs, k: int, metric: Metric) -> Neighbours:
    """The k best pairs of every query, by score and then by row; each query must have at least k."""
    best = order_pairs(canonical_scores(table, vectors, pairs, metric), pairs, k)
    return best.scores.reshape(len(vectors), k), best.rows.reshape(len(vectors), k)


def stack(parts: list[Neighbours], k: int) -> Neighbours:
    """Answers to parts of the queries as one."""
    scores = [np.empty((0, k), np.float32), *(scores for scores, _ in parts)]
    return np.concatenate(scores), np.concatenate([np.empty((0, k), np.int64), *(rows for _, rows in parts)])


def order_pairs(scores: NDArray[np.float32], pairs: Pairs, k: int) -> Pairs:
    """The first k pairs of each query by (score descending, row), queries in order."""
    order = np.lexsort((pairs.rows, -scores, pairs.queries))
    owners = pairs.queries[order]
    kept = order[np.arange(len(order)) - np.searchsorted(owners, owners) < k]
    return Pairs(pairs.rows[kept], pairs.queries[kept], scores[kept])


def rounding(dim: int) -> float:
    """How far a cosine computed in float32 can be from the canonical one: the worst case of a sum of dim products
    in any order, of the norms and the query's direction, and of the last rounding to float32."""
    full = torch.get_float32_matmul_precision() == "highest"  # else torch may multiply in bfloat16
    return (2 * dim + 16) * 2.0 ** (-24 if full else -8)


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

"""The order of neighbours, the same whatever engine found them.

Engines find candidates with fast arithmetic and a margin for its rounding. Here every candidate's score is
computed once more in float64, by additions in a fixed order, and rounded to float32; equal scores are ordered
by row. So block sizes, threads, libraries and devices cannot change an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.search.compiled import address, kernels
from actstore.search.queries import Metric
from actstore.search.table import RowTable

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
    whole = table.in_memory()
    if whole is None or kernels() is None:
        dots, squares = _sums(table, vectors, pairs)
    else:
        dots, squares = _sums_compiled(whole, vectors, pairs)
    if metric == "inner":
        return dots.astype(np.float32)
    exact = vectors.numpy().astype(np.float64)
    both = np.sqrt(squares) * np.sqrt(fold(exact * exact))[pairs.queries]
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

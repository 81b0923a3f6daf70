"""Cosines of single pairs of a row and a query, from the rows as they are stored."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.threads import spread
from actstore.search.compiled import address, kernels
from actstore.search.ranking import Pairs, kth_best, near_best, rounding, runs
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

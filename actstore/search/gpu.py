"""Exact nearest neighbours on a GPU: faiss compares float16 unit rows, the canonical ranking decides.

faiss's scores are off by the rounding of float16. So it is asked for more than k, and an answer counts once the last of
them is below the k-th canonical score by more than that rounding; until then it is asked for twice as many.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.search.exact import ExactSearch
from actstore.search.queries import parse_k, parse_vectors, unit
from actstore.search.ranking import Neighbours, Pairs, rank, rounding
from actstore.search.selection import Rows
from actstore.search.table import RowTable

if TYPE_CHECKING:
    from actstore.split import Split

MOST = 2048  # neighbours that faiss finds on a GPU at a time
_BLOCK = 1 << 18  # rows sent at a time: 1 GiB at 2048 dimensions
Nearest = Callable[[Tensor, int], tuple[NDArray[np.float32], NDArray[np.int64]]]


class GpuSearch:
    """resident: hold all rows on the GPU in float16, 2 bytes a value; else send them block by block in every search."""

    def __init__(self, rows: Split | Tensor | Any, *, resident: bool = True, device: int = 0) -> None:
        require_gpu()
        self.table = rows if isinstance(rows, RowTable) else RowTable(rows)
        self._device, self._resources = device, faiss.StandardGpuResources()
        self._index: Any = self._hold() if resident else None

    def search(self, vectors: Any, k: int = 10, rows: Rows | None = None) -> Neighbours:
        """As `ExactSearch.search` by cosine, with the same answers; some of the rows are searched on the CPU."""
        if rows is not None:
            return ExactSearch(self.table).search(vectors, k, rows)
        queries = parse_vectors(vectors, self.table.dim)
        k = parse_k(k, len(self.table))
        return certified(self.table, queries, k, self._blockwise if self._index is None else self._held)

    def _hold(self) -> Any:
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16, config.device = True, self._device
        index = faiss.GpuIndexFlatIP(self._resources, self.table.dim, config)
        for start in range(0, len(self.table), _BLOCK):
            index.add(unit(self.table.read(start, min(len(self.table), start + _BLOCK))).numpy())
        return index

    def _held(self, directions: Tensor, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        scores, rows = self._index.search(directions.numpy(), count)
        return scores, rows

    def _blockwise(self, directions: Tensor, count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        queries, parts = directions.half().numpy(), []
        for start in range(0, len(self.table), _BLOCK):
            rows = unit(self.table.read(start, min(len(self.table), start + _BLOCK))).half().numpy()
            scores, places = faiss.knn_gpu(
                self._resources, queries, rows, min(count, len(rows)),
                metric=faiss.METRIC_INNER_PRODUCT, device=self._device,
            )  # fmt: skip
            parts.append((scores, places + start))
        scores, rows = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)


def certified(
    table: RowTable, queries: Tensor, k: int, nearest: Nearest, rounded: float = 1.01 * 2.0**-10
) -> Neighbours:
    """The k nearest of queries (n, dim), from a search whose scores are off by the rounding of float16 at most.

    nearest: unit vectors (n, dim) and a count -> scores (n, count) descending, and rows. rounded: how much row and
    query lose of a cosine before they are multiplied, in sums of float32.
    """
    margin = rounded + 2 * rounding(table.dim)
    scores, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    open_, count = np.arange(len(queries)), min(len(table), MOST, 2 * k + 32)
    while len(open_):
        chosen = queries[torch.from_numpy(open_)]
        found, places = nearest(unit(chosen), count)
        owners = np.repeat(np.arange(len(open_)), count)
        pairs = Pairs(places.ravel().astype(np.int64), owners, np.empty(0, np.float32))
        scores[open_], rows[open_] = rank(table, chosen, pairs, k, "cosine")
        if count == len(table):
            break
        open_ = open_[found[:, -1] + margin >= scores[open_, -1]]
        if count == MOST and len(open_):
            warnings.warn(
                f"{len(open_)} queries have more than {MOST:,} rows too close to tell apart; all products do",
                stacklevel=3,
            )
            scores[open_], rows[open_] = ExactSearch(table).search(queries[torch.from_numpy(open_)], k)
            break
        count = min(len(table), MOST, 2 * count)
    return scores, rows


def has_gpu() -> bool:
    """Whether faiss can compute on one."""
    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0


def require_gpu() -> None:
    if not hasattr(faiss, "StandardGpuResources"):
        raise InvalidInputError(
            "a GPU was asked for, but this faiss has no GPU code; install faiss-gpu, or use the CPU"
        )
    if faiss.get_num_gpus() < 1:
        raise InvalidInputError("a GPU was asked for, but faiss finds none on this machine; use device cpu")

"""faiss's exhaustive search: as an engine over the stored rows, and as the plain peer of every other one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import spread, worker_threads
from actstore.search.gpu import certified
from actstore.search.ranking import Neighbours
from actstore.search.table import Rows, RowTable, SelectedRows, parse_k, parse_vectors, unit

if TYPE_CHECKING:
    from actstore.split import Split

_BLOCK = 8192
_SENT = 1 << 16  # rows that faiss gets at a time, in fp32: 512 MiB at 2048 dimensions
Found = tuple[NDArray[np.float32], NDArray[np.int64]]


def nearest_by_faiss(directions: Tensor, rows: Tensor, k: int) -> Found:
    """Unit vectors (n, dim) and unit rows (m, dim), both float32 -> scores (n, k) descending, rows (n, k).

    The search of `IndexFlatIP`, over memory that is there already: an index would copy it, and grow by doubling."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    found: Found = faiss.knn(directions.numpy(), rows.numpy(), k, metric=faiss.METRIC_INNER_PRODUCT)
    return found


class FaissSearch:
    """Every row sent to faiss as a unit vector in float32, block by block; the canonical ranking decides.

    Memory beside the rows: a block of them in float32."""

    def __init__(self, rows: Split | Tensor | Any) -> None:
        self.table = rows if isinstance(rows, RowTable) else RowTable(rows)

    def search(self, vectors: Any, k: int = 10, rows: Rows | None = None) -> Neighbours:
        """As `ExactSearch.search` by cosine, with the same answers."""
        if rows is not None:
            scores, places = FaissSearch(SelectedRows(self.table, rows)).search(vectors, k)
            return scores, rows[places]
        queries = parse_vectors(vectors, self.table.dim)
        return certified(self.table, queries, parse_k(k, len(self.table)), self._nearest, rounded=0.0)

    def _nearest(self, directions: Tensor, count: int) -> Found:
        scores, rows = np.empty((len(directions), 0), np.float32), np.empty((len(directions), 0), np.int64)
        held = torch.empty(min(_SENT, len(self.table)), self.table.dim)
        for start in range(0, len(self.table), _SENT):
            stop = min(len(self.table), start + _SENT)
            fill_unit(self.table, start, held[: stop - start])
            some = nearest_by_faiss(directions, held[: stop - start], min(count, stop - start))
            scores, rows = np.concatenate([scores, some[0]], 1), np.concatenate([rows, some[1] + start], 1)
            best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
            scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
        return scores, rows


class FlatSearch:
    """All unit rows in fp32, 4 bytes a value, held once: for comparison, not for use. Ties are as they fall."""

    def __init__(self, rows: Split | Tensor | Any) -> None:
        table = RowTable(rows)
        self._rows = torch.empty(len(table), table.dim)
        fill_unit(table, 0, self._rows)

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def search(self, vectors: Any, k: int = 10) -> Found:
        """faiss: (n, dim) -> scores (n, k), rows (n, k)."""
        return nearest_by_faiss(*self._parse(vectors), parse_k(k, len(self._rows)))

    def multiply(self, vectors: Any, k: int = 10) -> Found:
        """torch: block by block, with a running top-k."""
        queries, held = self._parse(vectors)
        k = parse_k(k, len(held))
        scores, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
        for start in range(0, len(held), _BLOCK):
            block = queries @ held[start : start + _BLOCK].T
            best = block.topk(min(k, block.shape[1]), dim=1)
            kept = torch.cat([scores, best.values], 1).topk(min(k, scores.shape[1] + best.values.shape[1]), dim=1)
            rows = torch.cat([rows, best.indices + start], 1).gather(1, kept.indices)
            scores = kept.values
        return scores.numpy(), rows.numpy()

    def multiply_whole(self, vectors: Any, k: int = 10) -> Found:
        """torch: one matrix product over all rows, then a top-k of all scores, as a plain implementation has it."""
        queries, held = self._parse(vectors)
        best = (queries @ held.T).topk(parse_k(k, len(held)), dim=1)
        return best.values.numpy(), best.indices.numpy()

    def _parse(self, vectors: Any) -> tuple[Tensor, Tensor]:
        return unit(parse_vectors(vectors, self._rows.shape[1])), self._rows


def fill_unit(table: RowTable, first: int, out: Tensor) -> None:
    """out (n, dim) float32 = the rows from `first` on, of length one."""

    def fill(part: int, worker: int) -> None:
        start, stop = part * _BLOCK, min(len(out), (part + 1) * _BLOCK)
        for begin in range(start, stop, 1024):  # the length is taken in float64
            end = min(stop, begin + 1024)
            out[begin:end] = unit(table.read(first + begin, first + end))

    with worker_threads() as workers:
        spread(fill, -(-len(out) // _BLOCK), workers)

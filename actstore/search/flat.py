"""The plain peers of every search: faiss's flat index, and a product over the same fp32 memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.search.queries import parse_k, parse_vectors, unit
from actstore.search.table import RowTable

if TYPE_CHECKING:
    from actstore.split import Split

_BLOCK = 8192


class FlatSearch:
    """All unit rows in fp32, 4 bytes a value: for comparison, not for use. Ties are as faiss leaves them."""

    def __init__(self, rows: Split | Tensor | Any) -> None:
        table = RowTable(rows)
        self._index = faiss.IndexFlatIP(table.dim)
        for start in range(0, len(table), _BLOCK):
            self._index.add(unit(table.read(start, min(len(table), start + _BLOCK)).float()).numpy())
        # the index's own memory, so that both peers read the same bytes
        values: NDArray[np.float32] = faiss.rev_swig_ptr(self._index.get_xb(), len(table) * table.dim)
        self._rows = torch.from_numpy(values.reshape(len(table), table.dim))

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def search(self, vectors: Any, k: int = 10) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """faiss: (n, dim) -> scores (n, k), rows (n, k)."""
        queries = parse_vectors(vectors, self._rows.shape[1])
        faiss.omp_set_num_threads(torch.get_num_threads())
        scores, rows = self._index.search(unit(queries).numpy(), parse_k(k, len(self._rows)))
        return scores, rows

    def multiply(self, vectors: Any, k: int = 10) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """torch: block by block, with a running top-k."""
        queries = unit(parse_vectors(vectors, self._rows.shape[1]))
        k = parse_k(k, len(self._rows))
        scores, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
        for start in range(0, len(self._rows), _BLOCK):
            block = queries @ self._rows[start : start + _BLOCK].T
            best = block.topk(min(k, block.shape[1]), dim=1)
            kept = torch.cat([scores, best.values], 1).topk(min(k, scores.shape[1] + best.values.shape[1]), dim=1)
            rows = torch.cat([rows, best.indices + start], 1).gather(1, kept.indices)
            scores = kept.values
        return scores.numpy(), rows.numpy()

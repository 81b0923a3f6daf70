"""The calls of faiss on a GPU that GpuSearch makes, answered by the CPU: rows and queries in float16, sums in float32.

Arguments are those of faiss, which tests/actstore/search/test_search_flat.py makes too, to see that it takes them.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

CARDS = 2
Found = tuple[NDArray[np.float32], NDArray[np.int64]]


class Card:
    """What was done: rows that were added to each card, and blocks that were only searched."""

    def __init__(self) -> None:
        self.held: list[tuple[int, int]] = []  # (card, rows)
        self.sent: list[tuple[int, int]] = []


class Resources:
    temporary: int | None = None

    def setTempMemory(self, size: int) -> None:
        self.temporary = size


class Config:
    useFloat16, device = False, 0


def _nearest(queries: NDArray[Any], rows: torch.Tensor, k: int) -> Found:
    assert k <= min(2048, len(rows))
    found = (torch.from_numpy(queries).half().float() @ rows.float().T).topk(k)
    return found.values.numpy(), found.indices.numpy()


def install(patch: Any, keeps: bool = True) -> Card:
    """In the place of faiss's own, until the patch is undone. keeps: else rows are forgotten, and answers are wrong."""
    card = Card()

    class Index:
        def __init__(self, resources: Resources, dim: int, config: Config) -> None:
            assert isinstance(resources, Resources)
            assert resources.temporary
            assert config.useFloat16
            self._dim, self._card, self._rows = dim, config.device, torch.empty(0, dim, dtype=torch.float16)

        def add(self, rows: NDArray[np.float32]) -> None:
            assert (rows.dtype, rows.shape[1]) == (np.float32, self._dim)
            self._rows = torch.cat([self._rows, torch.from_numpy(rows).half()]) if keeps else self._rows
            card.held.append((self._card, len(rows)))

        def search(self, queries: NDArray[np.float32], k: int) -> Found:
            assert queries.dtype == np.float32
            return _nearest(queries, self._rows, k)

    def knn_gpu(res: Resources, xq: NDArray[Any], xb: NDArray[Any], k: int, *, metric: int, device: int) -> Found:
        assert xq.dtype == xb.dtype == np.float16
        assert metric == faiss.METRIC_INNER_PRODUCT
        card.sent.append((device, len(xb)))
        return _nearest(xq, torch.from_numpy(xb if keeps else xb[:k]), k)

    names = {"StandardGpuResources": Resources, "GpuIndexFlatConfig": Config, "GpuIndexFlatIP": Index}
    for name, made in {**names, "knn_gpu": knn_gpu, "get_num_gpus": lambda: CARDS}.items():
        patch.setattr(faiss, name, made, raising=False)
    return card

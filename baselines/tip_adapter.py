"""Tip-Adapter without training: a cache of examples beside a classifier.

Zhang, Zhang, Fang, Gao, Li, Dai, Qiao and Li, Tip-Adapter: Training-free Adaption of CLIP for Few-shot Classification,
ECCV 2022. Their classifier is made of the category names by CLIP's text encoder; a network without one has the means of
the categories in its place.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from actstore.search.by_class import unit
from baselines.class_mean import OfEachCategory
from predictor.protocol.base_categories import BaseCategories

MOST_CACHED = 16  # rows of a base category: the most that the paper caches
_QUERIES = 1024  # that are compared with the cache at a time


class TipAdapter(OfEachCategory):
    """cos(query, mean) + weight * the mean over cached examples of exp(-sharpness * (1 - cos(query, example))).

    The mean over examples, where the paper has their sum, because base and novel categories have different numbers of
    them. weight, sharpness: the paper's alpha and beta.
    """

    key, name = "tip-adapter", "Tip-Adapter (training-free)"

    def __init__(self, seed: int = 0, weight: float = 1.0, sharpness: float = 5.5) -> None:
        self._seed, self._weight, self._sharpness = seed, weight, sharpness

    def prepare(self, base: BaseCategories) -> None:
        self.base = base
        self._cache = base.once((TipAdapter, self._seed), lambda: _cache(base, self._seed))

    def base_scores(self, queries: Tensor) -> Tensor:
        keys, targets = self._cache
        scores, counts = unit(queries) @ unit(self.base.means).T, torch.bincount(targets)
        for begin in range(0, len(queries), _QUERIES):
            near = self._near(unit(queries[begin : begin + _QUERIES]) @ keys.T)
            sums = near.new_zeros(len(near), len(counts)).index_add_(1, targets, near)
            scores[begin : begin + _QUERIES] += self._weight * sums / counts
        return scores

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        asked, (way, shots) = unit(queries), support.shape[1:3]
        near = self._near(asked @ unit(support).flatten(1, 2).mT)  # (tasks, n, way * shots)
        cached = near.view(*near.shape[:2], way, shots).mean(3)
        return torch.add(asked @ unit(support.mean(2)).mT, cached, alpha=self._weight)

    def _near(self, cosines: Tensor) -> Tensor:
        return torch.exp(-self._sharpness * (1 - cosines))


def _cache(base: BaseCategories, seed: int) -> tuple[Tensor, Tensor]:
    """Directions (n, dim) of at most MOST_CACHED rows of each base category, and their targets (n,). Of the means alone
    where no rows are at hand."""
    if base.split is None:
        return unit(base.means), torch.arange(len(base.names))
    most = int(np.diff(base.draw().offsets).max())
    chosen = base.draw(min(1.0, MOST_CACHED / most), seed)
    counts = torch.from_numpy(np.diff(chosen.offsets))
    return unit(base.take(chosen.rows)), torch.arange(len(counts)).repeat_interleave(counts)

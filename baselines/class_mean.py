"""Nearest class mean with cosine similarity.

Mensink, Verbeek, Perronnin and Csurka, Distance-Based Image Classification: Generalizing to New Classes at
Near-Zero Cost, PAMI 35(11), 2013. Here with the cosine in place of a learned metric.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actstore.search.by_class import ClassRows, unit
from actstore.split import Split
from predictor.protocol.method import Separable, Support
from predictor.protocol.stand_ins import Change, as_they_are


class ClassMean(Separable):
    """A category's score is the cosine of the query with the mean of the category's activations.

    change: of what is known of the base, as queries and support are changed already.
    """

    key = "class-mean"
    name = "Nearest class mean"

    def __init__(self, train: Split, base: Sequence[str], change: Change = as_they_are) -> None:
        index = train.class_index
        labels = index.positions(base)
        ClassRows.of(index, labels)  # refuses a class without rows
        self._base = unit(change(torch.from_numpy(train.means()[labels])))  # (n_base, dim)

    def base_scores(self, queries: Tensor) -> Tensor:
        return unit(queries) @ self._base.to(queries).T

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        return self.episode_scores(support.activations[None], queries[None])[0]

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """(tasks, way, shots, dim) and (tasks, n, dim) -> (tasks, n, way)."""
        return unit(queries) @ unit(support.mean(dim=2)).mT

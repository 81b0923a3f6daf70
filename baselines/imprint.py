"""Weight imprinting: the embedding of an example becomes its category's row of the classifier.

Qi, Brown and Lowe, Low-Shot Learning with Imprinted Weights, CVPR 2018. Their network is trained with unit
embeddings and unit rows; where only an ordinary classifier is at hand, its rows are normalised.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actstore.compute.tensors import borrow, one_thread
from actstore.search.by_class import ClassRows, unit
from actstore.split import Split
from predictor.protocol.head import Head, head_for
from predictor.protocol.method import Separable, Support
from predictor.protocol.stand_ins import Change, as_they_are


class Imprint(Separable):
    """Cosine with unit rows: of the classifier where one is given (else imprinted like the novel ones), and the
    normalised means of the novel categories' unit activations."""

    key, name = "imprint", "Imprinting"

    def __init__(
        self, train: Split, base: Sequence[str], head: Head | None = None, change: Change = as_they_are
    ) -> None:
        if head is not None:
            self._base = unit(head_for(head, base, train.dim).weight)  # (n_base, dim)
        else:
            self._base = imprint_rows(train, base, change)
            self.key, self.name = "imprint-base-rows", "Imprinting (base rows too)"

    def base_scores(self, queries: Tensor) -> Tensor:
        return unit(queries) @ self._base.to(queries).T

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        return self.episode_scores(support.activations[None], queries[None])[0]

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """(tasks, way, shots, dim) and (tasks, n, dim) -> (tasks, n, way)."""
        return unit(queries) @ unit(unit(support).mean(dim=2)).mT


def imprint_rows(train: Split, names: Sequence[str], change: Change = as_they_are) -> Tensor:
    """(n_class, dim): of each class the normalised mean of its unit activations, which are changed first."""
    return unit(mean_directions(train, names, change))


def mean_directions(train: Split, names: Sequence[str], change: Change = as_they_are) -> Tensor:
    """(n_class, dim): of each class the mean of its unit activations, which are changed first."""
    index = train.class_index
    labels = index.positions(names)
    ClassRows.of(index, labels)  # refuses a class without rows
    rows = torch.empty(len(labels), train.dim)
    with one_thread():
        for place, label in enumerate(labels):
            rows[place] = unit(change(borrow(train.of_class(label)).float())).mean(dim=0)
    return rows

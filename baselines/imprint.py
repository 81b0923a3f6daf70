"""Weight imprinting: the embedding of an example becomes its category's row of the classifier.

Qi, Brown and Lowe, Low-Shot Learning with Imprinted Weights, CVPR 2018. Their network is trained with unit
embeddings and unit rows; where only an ordinary classifier is at hand, its rows are normalised.
"""

from __future__ import annotations

from torch import Tensor

from actstore.search.by_class import unit
from baselines.class_mean import OfEachCategory
from predictor.protocol.head import Head, head_for


class Imprint(OfEachCategory):
    """Cosine with unit rows: of the classifier where one is given (else imprinted like the novel ones), and the
    normalised means of the novel categories' unit activations."""

    key, name, episode_name = "imprint", "Imprinting", "Imprinting"

    def __init__(self, head: Head | None = None) -> None:
        self._head = head
        if head is None:
            self.key, self.name = "imprint-base-rows", "Imprinting (base rows too)"

    def base_scores(self, queries: Tensor) -> Tensor:
        base = self.base
        rows = base.mean_directions if self._head is None else head_for(self._head, base.names, base.dim).weight
        return unit(queries) @ unit(rows).to(queries).T

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        return unit(queries) @ unit(unit(support).mean(dim=2)).mT

"""Nearest class mean with cosine similarity.

Mensink, Verbeek, Perronnin and Csurka, Distance-Based Image Classification: Generalizing to New Classes at
Near-Zero Cost, PAMI 35(11), 2013. Here with the cosine in place of a learned metric.
"""

from __future__ import annotations

from torch import Tensor

from actstore.search.by_class import unit
from predictor.protocol.method import Aggregate, Method


class ClassMean(Method):
    """A category's score is the cosine of the query with the mean of the category's activations."""

    key = "class-mean"
    name = "Nearest class mean"
    aggregates: tuple[Aggregate, ...] = ("max", "mean")
    aggregate: Aggregate | None = "mean"
    scores_categories_apart = True

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self.episode_scores(support[None], queries[None])[0]

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        return unit(queries) @ unit(support.mean(dim=2)).mT

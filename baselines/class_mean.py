"""Nearest class mean with cosine similarity.

Mensink, Verbeek, Perronnin and Csurka, Distance-Based Image Classification: Generalizing to New Classes at
Near-Zero Cost, PAMI 35(11), 2013. Here with the cosine in place of a learned metric.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from actstore.search.by_class import unit
from predictor.protocol.method import Aggregate, Method


class OfEachCategory(Method):
    """A method that scores a category by its own examples alone, in many tasks at once."""

    aggregates: tuple[Aggregate, ...] = ("max", "mean")
    aggregate: Aggregate | None = "mean"
    scores_categories_apart = True

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self.episode_scores(support[None], queries[None])[0]

    @abstractmethod
    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor: ...


class ClassMean(OfEachCategory):
    """A category's score is the cosine of the query with the mean of the category's activations."""

    key, name = "class-mean", "Nearest class mean"

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        return unit(queries) @ unit(support.mean(dim=2)).mT

"""Prototypical networks: a category is the mean of its embedded examples, the nearest one wins.

Snell, Swersky and Zemel, Prototypical Networks for Few-shot Learning, NIPS 2017.
"""

from __future__ import annotations

from torch import Tensor

from baselines.meta_learner import EmbeddingLearner


class PrototypicalNetwork(EmbeddingLearner):
    """Scores are negative squared Euclidean distances to the prototypes."""

    name = "ProtoNet"

    def compare(self, support: Tensor, queries: Tensor) -> Tensor:
        prototypes = support.mean(2)  # (tasks, way, dim)
        differences = queries[:, :, None] - prototypes[:, None]  # (tasks, n, way, dim)
        return -differences.square().sum(3)

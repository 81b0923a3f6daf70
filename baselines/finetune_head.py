"""Fine-tuning where only activations are at hand: the classifier alone is extended and trained on both sets.

The counterpart of the "Fine-Tuned ResNet" of Qiao et al., CVPR 2018 (see finetune.py), whose other layers need images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baselines.large_sample import ExtendedHead
from predictor.protocol.head import Head
from predictor.protocol.method import JointMethod


class FineTunedHead(ExtendedHead, JointMethod):
    """Base rows start as the classifier's, novel rows at 0; all are trained."""

    key = "finetune"
    name = "Fine-Tuned fc (activations)"
    paper_name = "Fine-Tuned ResNet"

    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self.learn(support).scores(queries)

    def learn(self, support: Tensor) -> Head:
        """The extended classifier."""
        examples, places = self._sample.flatten(support)
        n_novel, n_base = len(support), len(self._head.weight)

        def slope(logits: Tensor, batch: Tensor) -> Tensor:  # probability less what is wanted
            slopes = logits.softmax(dim=1)
            wanted = torch.cat([self._sample.targets[batch], n_base + places])
            slopes[torch.arange(len(slopes), device=slopes.device), wanted] -= 1
            return slopes

        known = self._head.weight.to(examples.device), self._head.bias.to(examples.device)
        weight = torch.cat([known[0], examples.new_zeros(n_novel, examples.shape[1])])
        bias = torch.cat([known[1], examples.new_zeros(n_novel)])
        self.train_rows(weight, bias, support, slope)
        return Head(weight.cpu(), bias.cpu())


class FinetunedEpisode:
    """The fine-tuned baseline of 5-way tables: a softmax classifier trained on each task's support, features fixed.

    As in Ravi and Larochelle, Optimization as a Model for Few-Shot Learning, ICLR 2017, where its settings are not
    given; those here are Chen, Liu, Kira, Wang and Huang's for their Baseline (A Closer Look at Few-shot
    Classification, ICLR 2019), but for whole-batch steps from zero weights, so that nothing is random. All tasks of a
    batch are trained at once, by gradients written out: no graph is kept.
    """

    name = "Fine-Tuned Baseline"

    def __init__(self, steps: int = 100, rate: float = 0.01, momentum: float = 0.9, weight_decay: float = 1e-3) -> None:
        self._steps, self._rate, self._momentum, self._weight_decay = steps, rate, momentum, weight_decay

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """(tasks, way, shots, dim) and (tasks, n, dim) -> (tasks, n, way)."""
        weights = self.fit(support)
        return queries @ weights[..., :-1].mT + weights[:, None, :, -1]

    def fit(self, support: Tensor) -> Tensor:
        """(tasks, way, shots, dim) -> weights (tasks, way, dim + 1), the bias last."""
        tasks, way, shots, dim = support.shape
        examples = torch.cat([support, support.new_ones(tasks, way, shots, 1)], dim=3).flatten(1, 2)
        wanted = torch.eye(way, device=support.device).repeat_interleave(shots, 0)  # (way * shots, way)
        weights = support.new_zeros(tasks, way, dim + 1)
        velocity = torch.zeros_like(weights)
        for _ in range(self._steps):
            errors = (examples @ weights.mT).softmax(2) - wanted  # (tasks, way * shots, way)
            gradient = errors.mT @ examples / (way * shots) + self._weight_decay * weights
            velocity = self._momentum * velocity + gradient
            weights = weights - self._rate * velocity
        return weights

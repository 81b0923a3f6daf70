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

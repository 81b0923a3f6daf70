"""Fine-tuning where only activations are at hand: the classifier alone is extended and trained on both sets.

The counterpart of the "Fine-Tuned ResNet" of Qiao et al., CVPR 2018 (see finetune.py), whose other layers need images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from baselines.large_sample import ExtendedHead, flatten_support
from predictor.protocol.head import Head
from predictor.protocol.method import Support

if TYPE_CHECKING:
    pass


class FineTunedHead(ExtendedHead):
    """Base rows start as the classifier's, novel rows at 0; all are trained."""

    key = "finetune"
    name = "Fine-Tuned fc (activations)"
    paper_name = "Fine-Tuned ResNet"

    def scores(self, queries: Tensor, support: Support) -> Tensor:
        return self.learn(support).scores(queries)

    def learn(self, support: Support) -> Head:
        """The extended classifier, by SGD on the cross entropy over all categories."""
        config, sample, n_base = self._config, self._sample, len(self._head.weight)
        examples, places = flatten_support(support)
        n_novel, count = len(support.activations), config.batch_size
        weight = torch.cat([self._head.weight, examples.new_zeros(n_novel, examples.shape[1])])
        bias = torch.cat([self._head.bias, examples.new_zeros(n_novel)])
        pushed, pushed_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        novel_share = n_novel / (n_novel + n_base)
        importance = torch.cat(
            [
                examples.new_full((count,), (1 - novel_share) / count),
                examples.new_full((len(examples),), novel_share / len(examples)),
            ]
        )
        for step, batch in enumerate(sample.batches(count, config.steps)):
            inputs = torch.cat([sample.activations[batch], examples])
            targets = torch.cat([sample.targets[batch], n_base + places])
            slope = torch.addmm(bias, inputs, weight.T).softmax(dim=1)  # of the loss by the logits
            slope[torch.arange(len(slope)), targets] -= 1
            slope *= importance[:, None]
            rate = config.rate(step, sample.mean_square, n_novel + n_base)
            weight -= rate * pushed.mul_(config.momentum).add_(slope.T @ inputs)
            bias -= rate * pushed_bias.mul_(config.momentum).add_(slope.sum(dim=0))
        return Head(weight, bias)

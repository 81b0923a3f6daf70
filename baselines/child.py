"""Learning like a Child: features and base rows stay, only the novel categories' rows are trained.

Mao, Wei, Yang, Wang, Huang and Yuille, Learning Like a Child: Fast Novel Visual Concept Learning from Sentence
Descriptions of Images, ICCV 2015, as used by Qiao et al., CVPR 2018: softmax over all categories, D_large at hand,
hence no baseline probability fixation.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from baselines.large_sample import ExtendedHead, flatten_support
from predictor.protocol.method import Separable, Support

if TYPE_CHECKING:
    pass


class Child(ExtendedHead, Separable):
    """Base scores are the classifier's; novel rows start at 0."""

    key = "child"
    name = "Learning like a Child"

    @cached_property
    def _base_mass(self) -> Tensor:
        """(n,): all that the novel rows' gradient needs of the fixed base rows, whatever the draw."""
        return self._head.scores(self._sample.activations).logsumexp(dim=1)

    def base_scores(self, queries: Tensor) -> Tensor:
        return self._head.scores(queries)

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        weight, bias = self.learn(support)
        return torch.addmm(bias.to(queries), queries, weight.to(queries).T)

    def learn(self, support: Support) -> tuple[Tensor, Tensor]:
        """weight (n_novel, dim) and bias (n_novel,), by SGD on the cross entropy over all categories."""
        config, sample = self._config, self._sample
        examples, targets = flatten_support(support)
        mass = self._head.scores(examples).logsumexp(dim=1)
        n_novel, count = len(support.activations), config.batch_size
        novel_share = n_novel / (n_novel + len(self._head.weight))
        wanted = torch.nn.functional.one_hot(targets, n_novel).to(examples)
        weight, bias = examples.new_zeros(n_novel, examples.shape[1]), examples.new_zeros(n_novel)
        pushed, pushed_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        for step, batch in enumerate(sample.batches(count, config.steps)):
            inputs = torch.cat([sample.activations[batch], examples])
            logits = torch.addmm(bias, inputs, weight.T)  # (count + examples, n_novel)
            all_mass = torch.logaddexp(torch.cat([self._base_mass[batch], mass]), logits.logsumexp(dim=1))
            slope = (logits - all_mass[:, None]).exp()  # of the loss by the logits: probability less what is wanted
            slope[count:] -= wanted
            slope[:count] *= (1 - novel_share) / count
            slope[count:] *= novel_share / len(examples)
            rate = config.rate(step, sample.mean_square, n_novel + len(self._head.weight))
            weight -= rate * pushed.mul_(config.momentum).add_(slope.T @ inputs)
            bias -= rate * pushed_bias.mul_(config.momentum).add_(slope.sum(dim=0))
        return weight, bias

"""Learning like a Child: features and base rows stay, only the novel categories' rows are trained.

Mao, Wei, Yang, Wang, Huang and Yuille, Learning Like a Child: Fast Novel Visual Concept Learning from Sentence
Descriptions of Images, ICCV 2015, as used by Qiao et al., CVPR 2018: softmax over all categories, D_large at hand,
hence no baseline probability fixation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baselines.large_sample import ExtendedHead
from predictor.protocol.base_categories import BaseCategories


class Child(ExtendedHead):
    """Base scores are the classifier's; novel rows start at 0."""

    key = "child"
    name = "Learning like a Child"

    def prepare(self, base: BaseCategories) -> None:
        super().prepare(base)
        # (n,): all that the novel rows' gradient needs of the fixed base rows, whatever the draw
        self._base_mass = self._head.scores(self._sample.activations).logsumexp(dim=1)

    def base_scores(self, queries: Tensor) -> Tensor:
        return self._head.scores(queries)

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        weight, bias = self.learn(support)
        return torch.addmm(bias.to(queries), queries, weight.to(queries).T)

    def learn(self, support: Tensor) -> tuple[Tensor, Tensor]:
        """weight (n_novel, dim) and bias (n_novel,)."""
        examples, places = self._sample.flatten(support)
        mass, n_novel = self._head.scores(examples).logsumexp(dim=1), len(support)
        wanted = torch.nn.functional.one_hot(places, n_novel).to(examples)

        def slope(logits: Tensor, batch: Tensor) -> Tensor:  # probability less what is wanted
            all_mass = torch.logaddexp(torch.cat([self._base_mass[batch], mass]), logits.logsumexp(dim=1))
            slopes = (logits - all_mass[:, None]).exp()
            slopes[len(batch) :] -= wanted
            return slopes

        weight, bias = examples.new_zeros(n_novel, examples.shape[1]), examples.new_zeros(n_novel)
        self.train_rows(weight, bias, support, slope)
        return weight.cpu(), bias.cpu()

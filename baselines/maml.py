"""MAML: weights from which a few steps of gradient descent on a task's support solve the task.

Finn, Abbeel and Levine, Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks, ICML 2017. As there,
batch normalisation always uses the statistics of the batch at hand, so queries of a task are scored together.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.func import functional_call, grad, replace_all_batch_norm_modules_

from actstore.backbones.architectures import Simple
from actstore.backbones.construction import seeded
from baselines.meta_learner import AdaptingLearner

Weights = dict[str, Tensor]


class Maml(AdaptingLearner):
    """order: first leaves the change of the inner gradients out of the meta-gradient, second has it in."""

    name = "MAML"

    def __init__(
        self,
        image_size: int,
        width: int,
        seed: int,
        way: int,
        order: Literal["first", "second"] = "second",
        inner_steps: int = 5,
        inner_rate: float = 0.1,
    ) -> None:
        super().__init__(image_size, way)
        with seeded(seed):
            self.network = replace_all_batch_norm_modules_(Simple(way, width))
        self._order, self._steps, self._rate = order, inner_steps, inner_rate

    def adapt(self, images: Tensor, targets: Tensor) -> Weights:
        weights: Weights = dict(self.network.named_parameters())
        for _ in range(self._steps):
            gradients = grad(self._loss)(weights, images, targets)
            if self._order == "first":
                gradients = {name: gradient.detach() for name, gradient in gradients.items()}
            weights = {name: weight - self._rate * gradients[name] for name, weight in weights.items()}
        return weights

    def _logits(self, weights: Weights, images: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.network, weights, (images,))
        return logits

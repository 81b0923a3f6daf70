"""The LSTM meta-learner: gradient descent as the cell of an LSTM, whose gates learn how fast to go and to forget.

Ravi and Larochelle, Optimization as a Model for Few-Shot Learning, ICLR 2017. As there: two layers whose weights all
coordinates share, gradients and losses preprocessed by logarithm and sign, the first cell state learnt, and no
gradient through the learner's gradients. Batch normalisation uses the statistics of the batch at hand.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, replace_all_batch_norm_modules_

from actstore.backbones.architectures import Simple
from actstore.backbones.construction import seeded
from baselines.meta_learner import AdaptingLearner

SCALE = 10.0  # p of the preprocessing: magnitudes below exp(-p) count as small
FIRST_FORGET = 0.9999  # share of a weight that an untrained optimiser keeps


class MetaLstm(AdaptingLearner):
    """The network's weights are the cell state; `first` is where every task starts.

    first_rate: the input gate before training, which is the learning rate of the learner's first steps.
    """

    name = "Meta-Learner LSTM"

    def __init__(
        self, image_size: int, width: int, seed: int, way: int, inner_steps: int = 5, hidden: int = 20,
        first_rate: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__(image_size, way)
        with seeded(seed):
            network = replace_all_batch_norm_modules_(Simple(way, width))
            self.optimiser = LearntOptimiser(hidden, first_rate)
        self._shapes = {name: weight.shape for name, weight in network.named_parameters()}
        self.first = nn.Parameter(torch.cat([weight.detach().flatten() for weight in network.parameters()]))
        self._network = [network.requires_grad_(False)]  # in a list: its weights are not the learner's
        self._steps = inner_steps

    def adapt(self, images: Tensor, targets: Tensor) -> Tensor:
        """Weights (n_weight,)."""
        weights, state = self.first, None
        for _ in range(self._steps):
            gradients, loss = grad_and_value(self._loss)(weights.detach(), images, targets)
            weights, state = self.optimiser(weights, gradients.detach(), loss.detach(), state)
        return weights

    def _logits(self, weights: Tensor, images: Tensor) -> Tensor:
        parts = torch.split(weights, [shape.numel() for shape in self._shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)}
        logits: Tensor = functional_call(self._network[0], named, (images,))
        return logits


State = tuple[Tensor, Tensor, Tensor, Tensor]  # of the first layer: hidden, cell; last forget and input gate (n, 1)


class LearntOptimiser(nn.Module):
    """One update of all coordinates: they share these weights, and each has a state of its own."""

    def __init__(self, hidden: int, first_rate: float) -> None:
        super().__init__()
        self.reader = nn.LSTMCell(4, hidden)
        self.forget, self.enter = nn.Linear(hidden + 2, 1), nn.Linear(hidden + 2, 1)
        for gate, start in ((self.forget, FIRST_FORGET), (self.enter, first_rate)):
            nn.init.uniform_(gate.weight, -0.01, 0.01)
            nn.init.constant_(gate.bias, math.log(start / (1 - start)))

    def forward(self, weights: Tensor, gradients: Tensor, loss: Tensor, state: State | None) -> tuple[Tensor, State]:
        """weights and gradients (n,), loss () -> new weights (n,), new state."""
        seen = torch.cat([preprocess(gradients), preprocess(loss.expand(len(gradients)))], dim=1)  # (n, 4)
        if state is None:
            empty = seen.new_zeros(len(seen), self.reader.hidden_size)
            state = (empty, empty, seen.new_ones(len(seen), 1), seen.new_zeros(len(seen), 1))
        hidden, cell = self.reader(seen, state[:2])
        column = weights[:, None]
        forget = self.forget(torch.cat([hidden, column, state[2]], dim=1)).sigmoid()  # (n, 1)
        enter = self.enter(torch.cat([hidden, column, state[3]], dim=1)).sigmoid()
        updated = forget * column - enter * gradients[:, None]
        return updated[:, 0], (hidden, cell, forget, enter)


def preprocess(values: Tensor) -> Tensor:
    """(n,) -> (n, 2): logarithm of the magnitude and sign, or, of small values, -1 and the value scaled up."""
    magnitude = values.abs()
    is_large = magnitude >= math.exp(-SCALE)
    logarithm = torch.where(is_large, magnitude.clamp(min=math.exp(-SCALE)).log() / SCALE, -1.0)
    direction = torch.where(is_large, values.sign(), values * math.exp(SCALE))
    return torch.stack([logarithm, direction], dim=1)

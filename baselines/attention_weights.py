"""Weights of a new category by attention over those of the base categories.

Gidaris and Komodakis, Dynamic Few-Shot Visual Learning without Forgetting, CVPR 2018: a classifier of cosines, and a
generator of its rows that is trained on base categories which play novel ones. Here on stored activations: the network
stays as it is, and the base's rows start at the mean directions of their categories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from actstore.errors import InvalidInputError
from actstore.search.by_class import unit
from actstore.split import Split
from actstore.streams.sampling import Stream, generator
from baselines.large_sample import RowTrainee
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.method import Method
from predictor.training import Trained, cosine

METHOD = "attention"
MOST_SHOTS = 5  # a task has 1 to so many examples of each category


@dataclass(frozen=True)
class AttentionConfig:
    """A task: `way` base categories play novel ones, `queries` rows of those and as many of the others are asked about.

    The paper's 5 novel categories are for 5-way tests; with more of them a step costs hardly more.
    """

    steps: int = 2000
    way: int = 16
    queries: int = 128
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    momentum: float = 0.9
    seed: int = 0


class WeightGenerator(nn.Module):
    """rows, keys: (n_base, dim), of the base's classifier and those that attention compares; asked: (dim, dim), makes
    of an example what is compared with keys; own, of_base: (dim,), how much of the examples' mean and of the attended
    base rows a new row has. scale, sharpness: of scores and of attention, both on cosines."""

    def __init__(self, directions: Tensor) -> None:
        super().__init__()
        dim = directions.shape[1]
        self.rows, self.keys = nn.Parameter(directions.clone()), nn.Parameter(directions.clone())
        self.asked = nn.Parameter(torch.eye(dim))
        self.own, self.of_base = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.scale, self.sharpness = nn.Parameter(torch.tensor(10.0)), nn.Parameter(torch.tensor(10.0))

    def forward(self, examples: Tensor, known: Tensor) -> Tensor:
        """(…, shots, dim) activations and the places (n_known,) of base categories to attend to -> (…, dim)"""
        directions = unit(examples)
        near = unit(directions @ self.asked.T) @ unit(self.keys[known]).T  # (…, shots, n_known)
        attended = (self.sharpness * near).softmax(-1) @ unit(self.rows[known])
        return self.own * directions.mean(-2) + self.of_base * attended.mean(-2)

    def scores(self, rows: Tensor, queries: Tensor) -> Tensor:
        """(rows, dim) and (n, dim) -> (n, rows)."""
        return self.scale * (unit(queries) @ unit(rows).mT)


class AttentionTrainee(RowTrainee):
    _config: AttentionConfig

    def __init__(self, train: Split, base: Sequence[str], config: AttentionConfig, device: torch.device) -> None:
        if len(base) < 3:
            raise InvalidInputError(f"tasks of base categories need at least three, got {len(base)}")
        super().__init__(train, base, config, device)
        self._way = min(config.way, len(base) // 2)
        self.generator = WeightGenerator(unit(BaseCategories.of_split(train, base).mean_directions))
        self._learn(self.generator)

    def step(self, number: int) -> dict[str, Tensor]:
        config, random = self._config, generator(self._config.seed, number, Stream.ATTENTION_TASKS)
        order, shots = random.permutation(len(self._names)), 1 + number % MOST_SHOTS
        novel, known = order[: self._way], order[self._way :]
        examples = self._drawn(random, np.repeat(novel, shots)).view(self._way, shots, -1)
        places = np.concatenate([random.integers(0, self._way, config.queries),
                                 random.integers(self._way, len(order), config.queries)])  # fmt: skip
        queries, others = self._drawn(random, order[places]), torch.from_numpy(known).to(self._device)
        rows = torch.cat([self.generator(examples, others), self.generator.rows[others]])
        loss = functional.cross_entropy(self.generator.scores(rows, queries), torch.from_numpy(places).to(self._device))
        self.descend(loss, config.learning_rate * cosine(number, config.steps))
        return {"loss": loss.detach()}

    def _drawn(self, random: np.random.Generator, classes: np.ndarray) -> Tensor:
        """A row of each of these classes (n,) -> (n, dim)."""
        begin, end = self._by_class.offsets[classes], self._by_class.offsets[classes + 1]
        return self._take(self._by_class.rows[random.integers(begin, end)])


class AttentionWeights(Method):
    """Base scores are those of the trained rows; novel rows are generated from the examples, with no training."""

    key, name = METHOD, "Attention over base weights"
    trained_on_base = True

    def __init__(self, trained: Trained) -> None:
        self._names = {name: place for place, name in enumerate(trained.identity["split"]["classes"])}
        self._generator = WeightGenerator(trained.tensors["rows"])
        self._generator.load_state_dict(dict(trained.tensors))
        self._generator.requires_grad_(False)

    def prepare(self, base: BaseCategories) -> None:
        self.base = base
        self._known = torch.tensor([self._names[name] for name in base.names])

    def base_scores(self, queries: Tensor) -> Tensor:
        return self._generator.scores(self._generator.rows[self._known], queries)

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self._generator.scores(self._generator(support, self._known), queries)

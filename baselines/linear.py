"""Softmax regression on stored activations: the linear oracle, and w_large^pt where no classifier is at hand.

Activations are standardised while training, so that one learning rate suits all of their channels; the weights that
are kept read raw activations. A tenth of each class is held out; the weights that do best on it are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from actstore.errors import InvalidInputError
from actstore.search.by_class import ClassRows
from actstore.split import Split
from actstore.streams.sampling import Stream, epoch_order, generator
from baselines.large_sample import RowTrainee
from predictor.protocol.head import Head, write_head
from predictor.training import Figures, Tensors, Trained, cosine

HEAD = "head.safetensors"  # what `read_head` reads
_MEASURED_ROWS = 4096  # at a time


@dataclass(frozen=True)
class LinearConfig:
    """epochs: at most; it stops after `patience` of them without a gain on the held-out rows."""

    epochs: int = 15
    batch_size: int = 256
    learning_rate: float = 0.05
    weight_decay: float = 1e-3
    held_out: float = 0.1
    patience: int = 5
    seed: int = 0


def trained_head(trained: Trained) -> Head:
    return Head(trained.tensors["weight"], trained.tensors["bias"], tuple(trained.identity["split"]["classes"]))


class LinearTrainee(RowTrainee):
    prefix = "layer."
    _config: LinearConfig

    @staticmethod
    def steps(train: Split, names: Sequence[str], config: LinearConfig) -> tuple[int, int]:
        of_epoch = max(1, len(hold_out(train, names, config)[0]) // config.batch_size)
        return config.epochs * of_epoch, of_epoch

    def __init__(self, train: Split, names: Sequence[str], config: LinearConfig, device: torch.device) -> None:
        super().__init__(train, names, config, device)
        self._rows, self._held_out = hold_out(train, names, config)  # pairs of a row and its place among the classes
        self._mean, self._scale = (part.to(device) for part in _moments(train, names))
        self._steps = max(1, len(self._rows) // config.batch_size)
        self.module = self.layer = nn.Linear(train.dim, len(names), device="meta").to_empty(device=device)
        for parameter in self.layer.parameters():
            nn.init.zeros_(parameter)
        self.optimiser = torch.optim.SGD(
            self.layer.parameters(), momentum=0.9, weight_decay=config.weight_decay, nesterov=True
        )
        self._best = deepcopy(self.layer.state_dict())
        self._best_top1, self._since = torch.tensor(-1.0, dtype=torch.float64), torch.tensor(0)
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def step(self, number: int) -> dict[str, Tensor]:
        epoch, place = divmod(number, self._steps)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, epoch_order(len(self._rows), self._config.seed, epoch)
        size = self._config.batch_size
        batch = self._rows[self._order[place * size : (place + 1) * size]]
        loss = functional.cross_entropy(self.layer(self._gather(batch)), self._targets(batch))
        self.descend(loss, self._config.learning_rate * cosine(number, self._config.epochs * self._steps))
        return {"loss": loss.detach()}

    def measure(self) -> Figures:
        """Top-1 accuracy on the held-out rows, 0 to 1."""
        right = 0
        with torch.inference_mode():
            for first in range(0, len(self._held_out), _MEASURED_ROWS):
                batch = self._held_out[first : first + _MEASURED_ROWS]
                right += int((self.layer(self._gather(batch)).argmax(1) == self._targets(batch)).sum())
        top1 = right / len(self._held_out)
        self._since += 1
        if top1 > self._best_top1:
            self._best_top1.fill_(top1)
            self._since.zero_()
            self._best = deepcopy(self.layer.state_dict())
        self.has_converged = int(self._since) >= self._config.patience
        return {"held_out_top1": top1}

    def state(self) -> Tensors:
        return {
            **super().state(),
            **{f"best.{name}": tensor for name, tensor in self._best.items()},
            "best_top1": self._best_top1,
            "since": self._since,
        }

    def restore(self, tensors: Tensors) -> None:
        super().restore(tensors)
        self._best = {name: tensors[f"best.{name}"].to(self._device) for name in self._best}
        self._best_top1, self._since = tensors["best_top1"], tensors["since"]
        self.has_converged = int(self._since) >= self._config.patience

    def model(self) -> Tensors:
        """weight (n_class, dim) and bias (n_class,) for raw activations."""
        weight = self._best["weight"] / self._scale
        return {"weight": weight, "bias": self._best["bias"] - weight @ self._mean}

    def keep(self, folder: Path) -> None:
        model = {name: tensor.detach().cpu() for name, tensor in self.model().items()}
        write_head(folder / HEAD, Head(model["weight"], model["bias"], self._names))

    def _gather(self, batch: NDArray[np.int64]) -> Tensor:
        return self._take(batch[:, 0]).sub_(self._mean).div_(self._scale)

    def _targets(self, batch: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(batch[:, 1].copy()).to(self._device)


def hold_out(train: Split, names: Sequence[str], config: LinearConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(n, 2) rows with their targets to train on, and a share of each class that is held out, at least one row."""
    index = train.class_index
    labels = index.positions(names)
    ClassRows.of(index, labels)  # refuses a class without rows
    parts: tuple[list[Any], list[Any]] = ([], [])
    for target, label in enumerate(labels):
        rows = generator(config.seed, label, Stream.HELD_OUT_ROWS).permutation(index.rows(label))
        if len(rows) < 2:
            raise InvalidInputError(f"class {names[target]!r} has one row; at least two are needed, one is held out")
        count = max(1, round(config.held_out * len(rows)))
        for part, some in zip(parts, (np.sort(rows[count:]), np.sort(rows[:count])), strict=True):
            part.append(np.stack([some, np.full(len(some), target)], axis=1))
    return np.concatenate(parts[0]), np.concatenate(parts[1])


def _moments(train: Split, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """(dim,) mean and standard deviation over the rows of these classes; a constant channel is left unscaled."""
    index, statistics = train.class_index, train.statistics()
    labels = index.positions(names)
    weight = statistics.count[labels, None] / statistics.count[labels].sum()
    mean = (weight * statistics.mean[labels]).sum(0)
    variance = (weight * (statistics.variance[labels] + (statistics.mean[labels] - mean) ** 2)).sum(0)
    scale = np.sqrt(variance)
    scale[scale < 1e-6 * max(1e-12, float(scale.max()))] = 1.0
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(scale.astype(np.float32))

"""Triplet network on stored activations: an embedding is learned in which nearest neighbours are searched.

Lin, Wang, Li, Zhang, Yuille and Lee, Transfer of View-Manifold Learning to Similarity Perception of Novel Objects, ICLR
2017, as used by Qiao et al., CVPR 2018, who train the whole network (triplet_images.py); the mining is FaceNet's
(triplet_loss.py). Here one linear layer is learned on top of the activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from actstore.compute.device import steps_per_reading
from actstore.compute.tensors import borrow
from actstore.search.by_class import ClassRows, unit
from actstore.split import Split
from baselines.nearest_neighbour import NearestNeighbour
from baselines.triplet_loss import plan_triplets, triplet_loss
from predictor.training import Report, RunOptions, Trained, Trainee
from predictor.training import train as run
from predictor.training.schedule import cosine

METHOD = "triplet"


@dataclass(frozen=True)
class TripletConfig:
    """A batch holds rows_per_class rows of each of classes_per_batch classes.

    Chosen on 16 of mini-ImageNet's base categories that played novel ones: the farther the map is from the identity
    (less weight decay), the better it knows the base categories and the worse the novel ones.
    """

    steps: int = 1000
    classes_per_batch: int = 32
    rows_per_class: int = 4
    margin: float = 0.2
    learning_rate: float = 1.0
    weight_decay: float = 1e-2
    momentum: float = 0.9
    seed: int = 0


class Embedding(nn.Module):
    """a -> a + change(a): a linear map that starts as the identity, to which weight decay pulls it back."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.change = nn.Parameter(torch.zeros(dim, dim))

    def forward(self, activations: Tensor) -> Tensor:
        """(…, dim) -> (…, dim)"""
        return activations + activations @ self.change.to(activations.device).T


class TripletTrainee(Trainee):
    def __init__(self, train: Split, base: Sequence[str], config: TripletConfig, device: torch.device) -> None:
        self._train, self._config, self._device = train, config, device
        self.steps_per_reading = steps_per_reading(device)
        self._labels = train.class_index.positions(base)
        ClassRows.of(train.class_index, self._labels)  # refuses a class without rows
        self.module = self.embedding = Embedding(train.dim).to(device)
        self.optimiser = torch.optim.SGD(
            self.embedding.parameters(), config.learning_rate, config.momentum, weight_decay=config.weight_decay
        )

    def step(self, number: int) -> dict[str, Tensor]:
        config = self._config
        rows, places = plan_triplets(
            self._train.class_index, self._labels, config.classes_per_batch, config.rows_per_class, config.seed, number
        )
        # Of length 1: the map is linear, so this changes no cosine, only makes one learning rate fit all stores.
        activations = unit(borrow(self._train.take(rows)).to(self._device).float())
        loss, active = triplet_loss(
            self.embedding(activations), torch.from_numpy(places).to(self._device), config.margin
        )
        self.descend(loss, config.learning_rate * cosine(number, config.steps))
        return {"loss": loss.detach(), "active": active}


def train_triplet(
    train: Split,
    base: Sequence[str],
    folder: Path,
    config: TripletConfig = TripletConfig(),  # noqa: B008 - frozen
    device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
    options: RunOptions = RunOptions(),  # noqa: B008 - frozen
    report: Report | None = None,
) -> Trained:
    """Learn an embedding from the rows of the base classes, and keep it in the folder."""
    identity = {
        "method": METHOD,
        "config": asdict(config),
        "split": {"classes": list(base)},
        "data": {"content": train.content},
    }
    return run(
        folder, identity, lambda: TripletTrainee(train, base, config, device), config.steps, 100, options, report
    )


def trained_embedding(trained: Trained) -> Embedding:
    """For inference: without gradients."""
    change = trained.tensors["change"]
    embedding = Embedding(len(change))
    embedding.load_state_dict({"change": change})
    return embedding.requires_grad_(False)


class Triplet(NearestNeighbour):
    """Nearest neighbours in the learned embedding."""

    key, name, paper_name = METHOD, "Triplet (activations)", "Triplet"

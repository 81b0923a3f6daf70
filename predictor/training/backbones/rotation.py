"""Turns as a second task: some images are shown turned by quarters, and the network is asked for the turn as well.

Gidaris, Singh and Komodakis, Unsupervised Representation Learning by Predicting Image Rotations, ICLR 2018; beside the
classes: Mangla et al., Charting the Right Manifold, WACV 2020. Features then are of more use to new classes, in
trainings long enough to need more than the classes to learn from (docs/results.md).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

TURNS = 4  # by 0, 90, 180 and 270 degrees
UPRIGHT = 5  # of eight images; one is shown at each of the other turns
WEIGHT = 0.5  # of the second task's loss, that of the classes counts 1


class ClassesAndTurns(nn.Module):
    """In place of a network's classifier of `dim` activations while it is trained: its logits, then those of turns."""

    def __init__(self, classes: nn.Module, dim: int) -> None:
        super().__init__()
        self.classes, self.turns = classes, nn.Linear(dim, TURNS)
        nn.init.zeros_(self.turns.weight)  # as good a start as any for a linear layer alone, and the same for all
        nn.init.zeros_(self.turns.bias)

    def forward(self, activations: Tensor) -> Tensor:
        """(n, dim) -> (n, n_class + TURNS)"""
        return torch.cat([self.classes(activations), self.turns(activations)], 1)


def choose_turns(count: int) -> Tensor:
    """(count,) quarter turns of the images of a batch, by their places: a batch is in random order anyway."""
    return (torch.arange(count) % 8 - UPRIGHT + 1).clamp_(min=0)


def turn_images(images: Tensor, turns: Tensor) -> Tensor:
    """(n, 3, s, s), each by its number of quarter turns."""
    turned = images.clone()
    for turn in range(1, TURNS):
        places = (turns == turn).to(images.device)
        turned[places] = torch.rot90(images[places], turn, (2, 3))
    return turned

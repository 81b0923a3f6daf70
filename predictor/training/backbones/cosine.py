"""A classifier that sees directions alone: a cosine per class, times a scale that is learnt with them.

Gidaris and Komodakis, Dynamic Few-Shot Visual Learning without Forgetting, CVPR 2018; Chen et al., A Closer Look at
Few-Shot Classification, ICLR 2019. Features taught by it lie closer to their class and serve new classes better.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

FIRST_SCALE = 10.0


class CosineClassifier(nn.Module):
    """In place of a network's `fc` while it is trained. length: of the activations, a running mean."""

    length: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().clone())  # (n_class, dim), of which the directions count
        self.scale = nn.Parameter(torch.tensor(FIRST_SCALE))
        self.register_buffer("length", torch.ones(()))

    def forward(self, activations: Tensor) -> Tensor:
        """(n, dim) -> (n, n_class)"""
        if self.training:
            with torch.no_grad():
                self.length.lerp_(activations.norm(dim=1).mean().to(self.length.dtype), 0.01)
        return self.scale * functional.normalize(activations) @ functional.normalize(self.weight).T

    def linear_tensors(self) -> dict[str, Tensor]:
        """fc.weight and fc.bias of a plain classifier with the same order of classes for every image, whose logits are
        also about as large: for files of weights, which know no other kind."""
        weight = functional.normalize(self.weight.detach()) * (self.scale.detach() / self.length)
        return {"fc.weight": weight, "fc.bias": weight.new_zeros(len(weight))}

"""What the networks of this package have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from actstore.backbones.transform import Transform


class Network(nn.Module):
    """features: images -> activations. fc: activations -> logits of the classes it was trained on.

    Activations are averages of ReLU outputs, so never negative: phi's identity start relies on that.
    """

    dim: int
    fc: nn.Linear
    transform: ClassVar[Transform]  # used where the weights file does not say another

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, dim)"""

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, n_class)"""
        logits: Tensor = self.fc(self.features(images))
        return logits


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Padded to keep the size at stride 1; without bias, since batch normalisation follows."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def initialise(network: nn.Module) -> None:
    """He's initialisation by fan-out, from torch's global generator: construction.py seeds and restores it."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

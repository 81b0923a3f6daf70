"""What the networks of this package have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import ClassVar

from torch import Tensor, nn

from actstore.backbones.transform import Transform


@cache
def imagenet_names() -> dict[str, str]:
    """WNID -> English name: WordNet's first word for it, made distinct where two share one (crane, maillot)."""
    text = files("actstore.backbones").joinpath("imagenet_categories.txt").read_text(encoding="utf-8")
    return dict(line.split(" ", 1) for line in text.splitlines())


def imagenet_wnids() -> tuple[str, ...]:
    """Sorted, as the rows of a classifier are."""
    return tuple(imagenet_names())


class Network(nn.Module):
    """features: images -> activations. fc: activations -> logits of the classes it was trained on.

    Activations are averages of ReLU outputs, so never negative.
    """

    dim: int
    fc: nn.Linear
    transform: ClassVar[Transform]  # used where the weights file does not say another

    def maps(self, images: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, dim, h, w), what the average pool reads"""
        raise NotImplementedError

    def end_in(self, dim: int, num_classes: int) -> None:
        """Called last by a constructor: the pool and the classifier after the layers, and first weights for all."""
        self.dim = dim
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(dim, num_classes)
        initialise(self)

    def features(self, images: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, dim)"""
        pooled: Tensor = self.avgpool(self.maps(images)).flatten(1)
        return pooled

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, n_class)"""
        logits: Tensor = self.fc(self.features(images))
        return logits


@dataclass(frozen=True)
class Construction:
    """A network that was built, before a file of weights is read into it.

    name: exact; of a pretrained one it says which weights (`timm:NAME.TAG`). head: name of the classifier, whose input
    is the activation; None: the output is. published: file name -> transform of weights that others publish for it
    (None: the network's own). classes: what published or pretrained weights were trained on, where that is known.
    has_weights: it may come with weights already, as pretrained ones and a user's do.
    """

    name: str
    module: nn.Module
    transform: Transform
    head: str | None = "fc"
    published: Mapping[str, Transform | None] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    has_weights: bool = False


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Padded to keep the size at stride 1; without bias, since batch normalisation follows."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def initialise(network: nn.Module) -> None:
    """He's initialisation by fan-out, from torch's global generator: construction.py seeds and restores it."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

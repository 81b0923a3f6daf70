"""Several networks of one kind as one: their activations are joined, and one classifier reads them all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from actstore.backbones.network import Network

JOINED_BY = "+"  # in a name, such as resnet8+resnet8
MOST = 8  # networks: a file that came from anywhere may ask for no more memory than that


class SideBySide(Network):
    """Of networks whose maps have the same places. Activations: those of the first, then those of the second, …"""

    def __init__(self, networks: Sequence[Network], num_classes: int = 1000) -> None:
        super().__init__()
        for network in networks:
            network.fc = nn.Identity()  # type: ignore[assignment]  # one classifier for all, which end_in adds
        dim = sum(network.dim for network in networks)
        self.end_in(dim, num_classes)
        self.networks = nn.ModuleList(networks)

    def maps(self, images: Tensor) -> Tensor:
        return torch.cat([network.maps(images) for network in self.networks], 1)  # type: ignore[operator]

"""The four-layer network of Matching Networks (Vinyals et al., NIPS 2016), as the authors of the paper trained it."""

from __future__ import annotations

from torch import Tensor, nn

from actstore.backbones.network import Network, convolution
from actstore.backbones.transform import Transform

WIDTH = 64


class Simple(Network):
    """Any image size from 8 pixels on; at 80 the average pool spans 10x10."""

    transform = Transform(resize=92, crop=80)  # the authors' sizes

    def __init__(self, num_classes: int = 1000, width: int = WIDTH) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(*layer(3, width), nn.MaxPool2d(2))
        self.layer2 = nn.Sequential(*layer(width, width), nn.MaxPool2d(2))
        self.layer3 = nn.Sequential(*layer(width, width), nn.MaxPool2d(2))
        self.layer4 = nn.Sequential(*layer(width, width))
        self.end_in(width, num_classes)

    def maps(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(images))))  # (n, width, h / 8, w / 8)
        return maps


def layer(inputs: int, width: int) -> tuple[nn.Module, ...]:
    return convolution(inputs, width, 3), nn.BatchNorm2d(width), nn.ReLU(inplace=True)

"""WRN-28-10 (Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016), as the authors of the paper trained it.

It departs from the original as their code does: a stem of 80 channels, post-activation blocks, and a stride
of 2 in each of the three stages.
"""

from __future__ import annotations

from torch import Tensor, nn

from actstore.backbones.network import Network, convolution
from actstore.backbones.resnet import BasicBlock, stage
from actstore.backbones.transform import Transform


class WideResNet(Network):
    """Any image size from 8 pixels on; at 80 the average pool spans 10x10."""

    transform = Transform(resize=92, crop=80)  # the authors' sizes

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = convolution(3, 80, 3)
        self.bn1 = nn.BatchNorm2d(80)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = stage(BasicBlock, 80, 160, depth=4, stride=2)
        self.layer2 = stage(BasicBlock, 160, 320, depth=4, stride=2)
        self.layer3 = stage(BasicBlock, 320, 640, depth=4, stride=2)
        self.end_in(640, num_classes)

    def maps(self, images: Tensor) -> Tensor:
        hidden = self.relu(self.bn1(self.conv1(images)))  # (n, 80, h, w)
        maps: Tensor = self.layer3(self.layer2(self.layer1(hidden)))  # (n, 640, h / 8, w / 8)
        return maps

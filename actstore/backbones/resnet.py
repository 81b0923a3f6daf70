"""ResNet-10, ResNet-18 and ResNet-50 (He et al., Deep Residual Learning for Image Recognition, CVPR 2016).

Names and shapes of the parameters are torchvision's, so that its published weights load. As there, the
bottleneck strides in its 3x3 convolution ("v1.5"). ResNet-10 has one block per stage: for short trainings.
"""

from __future__ import annotations

from torch import Tensor, nn

from actstore.backbones.network import Network, convolution
from actstore.backbones.transform import Transform


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """A projection where the shape changes, None where the identity will do."""
    if inputs == outputs and stride == 1:
        return None
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; (n, inputs, h, w) -> (n, width, h / stride, w / stride)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(inputs, width, stride)

    def forward(self, images: Tensor) -> Tensor:
        carried = images if self.downsample is None else self.downsample(images)
        hidden = self.relu(self.bn1(self.conv1(images)))
        output: Tensor = self.relu(self.bn2(self.conv2(hidden)) + carried)
        return output


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions; (n, inputs, h, w) -> (n, 4 * width, h / stride, w / stride)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(inputs, outputs, stride)

    def forward(self, images: Tensor) -> Tensor:
        carried = images if self.downsample is None else self.downsample(images)
        hidden = self.relu(self.bn1(self.conv1(images)))
        hidden = self.relu(self.bn2(self.conv2(hidden)))
        output: Tensor = self.relu(self.bn3(self.conv3(hidden)) + carried)
        return output


Block = type[BasicBlock] | type[Bottleneck]


def stage(block: Block, inputs: int, width: int, depth: int, stride: int) -> nn.Sequential:
    """`depth` blocks, the first of which strides."""
    first = block(inputs, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width) for _ in range(depth - 1)))


class ResNet(Network):
    """Any image size from 32 pixels on; 224 is what published weights expect."""

    transform = Transform(resize=256, crop=224)

    def __init__(self, block: Block, depths: tuple[int, int, int, int], num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = convolution(3, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = stage(block, 64, 64, depths[0], stride=1)
        self.layer2 = stage(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = stage(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = stage(block, 256 * block.expansion, 512, depths[3], stride=2)
        self.end_in(512 * block.expansion, num_classes)

    def maps(self, images: Tensor) -> Tensor:
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(images))))  # (n, 64, h / 4, w / 4)
        maps: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))  # (n, dim, h / 32, w / 32)
        return maps


def resnet10(num_classes: int = 1000) -> ResNet:
    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes)


def resnet18(num_classes: int = 1000) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet50(num_classes: int = 1000) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)

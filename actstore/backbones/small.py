"""A residual network small enough to train on a two-core CPU, made for the embedded glyphs (32x32).

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

from __future__ import annotations

from torch import Tensor, nn

from actstore.backbones.network import Network, convolution
from actstore.backbones.resnet import BasicBlock
from actstore.backbones.transform import Transform


class Small(Network):
    """Eight layers with weights; images of 32 to 64 pixels, grey (n, 1, h, w) or colour (n, 3, h, w)."""

    transform = Transform(resize=32, crop=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = convolution(3, 32, 5, stride=2)
        self.bn1 = nn.BatchNorm2d(32)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = BasicBlock(32, 48, stride=2)
        self.layer2 = BasicBlock(48, 96, stride=2)
        self.layer3 = BasicBlock(96, 256, stride=2)
        self.end_in(256, num_classes)

    def maps(self, images: Tensor) -> Tensor:
        colour = images.expand(-1, 3, -1, -1)  # a grey image counts as three equal channels
        hidden = self.relu(self.bn1(self.conv1(colour)))  # (n, 32, h / 2, w / 2)
        maps: Tensor = self.layer3(self.layer2(self.layer1(hidden)))  # (n, 256, h / 16, w / 16)
        return maps

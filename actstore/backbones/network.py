"""What the networks of this package have in common, the transform of their images, and the names of ImageNet's
classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from actstore.errors import InvalidInputError
from actstore.spec import require

# What nearly every published backbone was trained with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

VIEWS = (1, 2, 10)  # of an image: its centre, with its mirror image, or five crops and theirs
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
Rgb = tuple[float, float, float]
PixelFunction = Callable[[Image.Image], Tensor]  # a user's own transform


@dataclass(frozen=True)
class Transform:
    """The steps and roundings of torchvision's Resize, CenterCrop, ToTensor and Normalize on PIL images.

    resize: length of the shorter side, in pixels. crop: side of the centre square kept of it.
    Picklable, and small enough for the metadata of a store.
    """

    resize: int
    crop: int
    mean: Rgb = IMAGENET_MEAN
    std: Rgb = IMAGENET_STD
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        for name in ("resize", "crop"):
            value = getattr(self, name)
            require(isinstance(value, int) and value > 0, f"{name} must be a positive integer, got {value!r}")
        require(self.crop <= self.resize, f"crop must not exceed resize {self.resize}, got {self.crop}")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _parse_rgb(name, getattr(self, name)))
        require(min(self.std) > 0, f"std must be positive, got {self.std}")
        known = " or ".join(repr(name) for name in FILTERS)
        require(self.interpolation in FILTERS, f"interpolation must be {known}, got {self.interpolation!r}")

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """A PIL image in RGB -> (channels, crop, crop) float32."""
        return self.views(image, 1)[0]

    def views(self, image: Image.Image, count: int) -> torch.Tensor:
        """A PIL image in RGB -> (count, 3, crop, crop): the centre, of 10 the corners too; then these mirrored."""
        require(count in VIEWS, f"views must be 1, 2 or 10, got {count}")
        require(image.mode == "RGB", f"expected an RGB image, got mode {image.mode!r}; use image.convert('RGB')")
        scaled = self._resize_shorter_side(image)
        left, top = (round((length - self.crop) / 2.0) for length in scaled.size)
        centre = self._cut(scaled, left, top)
        if count == 1:
            return centre[None]
        corners = []
        if count == 10:
            right, bottom = (length - self.crop for length in scaled.size)
            corners = [self._cut(scaled, left, top) for left in (0, right) for top in (0, bottom)]
        crops = torch.stack([centre, *corners])
        return torch.cat([crops, crops.flip(3)])

    @property
    def channels(self) -> int:
        """Of what it makes of an image."""
        return 3

    def _cut(self, image: Image.Image, left: int, top: int) -> torch.Tensor:
        """The square that begins there, (3, crop, crop), normalised."""
        pixels = np.array(image.crop((left, top, left + self.crop, top + self.crop)))  # (crop, crop, 3) uint8
        values = torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float().div_(255)  # (3, crop, crop)
        mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (self.mean, self.std))
        return values.sub_(mean).div_(std)

    def _resize_shorter_side(self, image: Image.Image) -> Image.Image:
        short, long = sorted(image.size)
        if short == self.resize:
            return image
        lengths = (self.resize, int(self.resize * long / short))
        width, height = lengths if image.width <= image.height else lengths[::-1]
        return image.resize((width, height), FILTERS[self.interpolation])

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        if "function" in data:
            raise InvalidInputError(
                f"these images went through {data['function']}, a transform that no file can keep; "
                "pass the network and its transform from Python"
            )
        try:
            if "parts" in data:
                return joined_transform([Transform.from_json(part) for part in data["parts"]])  # type: ignore[return-value]
            return cls(**data)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"expected a transform with resize, crop, mean and std, got {data!r}: {error}"
            ) from error


@dataclass(frozen=True, kw_only=True)
class OwnTransform(Transform):
    """A user's own function, such as one of torchvision's: a PIL image in RGB -> (3, side, side) float32."""

    function: PixelFunction

    @classmethod
    def of(cls, function: PixelFunction) -> Self:
        """Tried on a black image, which tells the side of its results."""
        shape = tuple(getattr(function(Image.new("RGB", (64, 48))), "shape", ()))
        require(
            len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2],
            f"a transform must give a tensor (3, side, side), got {shape or 'no tensor'}",
        )
        return cls(resize=shape[1], crop=shape[1], function=function)

    def views(self, image: Image.Image, count: int) -> torch.Tensor:
        """(count, 3, side, side): the function's result, and for 2 its mirror image."""
        require(count < 10, "ten views of an image need an actstore.backbones.Transform, which says what to crop")
        found = self.function(image)[None]
        return torch.cat([found, found.flip(3)]) if count == 2 else found

    def to_json(self) -> dict[str, Any]:
        """What a store remembers of it: its parameters where its text has them, else its name."""
        text = repr(self.function)
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return {"function": name if " at 0x" in text else text}


@dataclass(frozen=True)
class JoinedTransform(Transform):
    """What each of several networks expects, one after the other along the channels; smaller squares lie in the upper
    left corner of the largest."""

    parts: tuple[Transform, ...] = ()

    @property
    def channels(self) -> int:
        return 3 * len(self.parts)

    def views(self, image: Image.Image, count: int) -> torch.Tensor:
        """A PIL image in RGB -> (count, 3 * parts, crop, crop)."""
        pixels: torch.Tensor | None = None
        for place, part in enumerate(self.parts):
            own = part.views(image, count)
            if pixels is None:
                pixels = torch.zeros(len(own), self.channels, self.crop, self.crop)
            pixels[:, 3 * place : 3 * place + 3, : part.crop, : part.crop] = own
        assert pixels is not None
        return pixels

    def split(self, images: torch.Tensor) -> list[torch.Tensor]:
        """(n, 3 * parts, crop, crop) -> of each part (n, 3, its crop, its crop), as it would have come alone."""
        cut = [images[:, 3 * place : 3 * place + 3, : part.crop, : part.crop] for place, part in enumerate(self.parts)]
        return [own.contiguous(memory_format=torch.channels_last) for own in cut]

    def to_json(self) -> dict[str, Any]:
        return {"parts": [part.to_json() for part in self.parts]}


def joined_transform(parts: Sequence[Transform]) -> JoinedTransform:
    largest = max(parts, key=lambda part: part.crop)
    return JoinedTransform(largest.resize, largest.crop, parts=tuple(parts))


def _parse_rgb(name: str, values: Any) -> Rgb:
    try:
        red, green, blue = (float(value) for value in values)
    except (TypeError, ValueError):
        red = green = blue = math.nan
    is_finite = all(map(math.isfinite, (red, green, blue)))
    require(is_finite, f"{name} must be three finite numbers, one per colour channel, got {values!r}")
    return red, green, blue


IMAGENET = Transform(resize=256, crop=224)  # as torchvision's published networks have it


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

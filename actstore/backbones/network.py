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
            value = getattr(self, name)
            try:
                rgb = tuple(map(float, value))
            except (TypeError, ValueError):
                rgb = ()
            is_rgb = len(rgb) == 3 and all(map(math.isfinite, rgb))
            require(is_rgb, f"{name} must be three finite numbers, one per colour channel, got {value!r}")
            object.__setattr__(self, name, rgb)
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
        short, long = sorted(image.size)
        if short != self.resize:
            lengths = (self.resize, int(self.resize * long / short))
            size = lengths if image.width <= image.height else lengths[::-1]
            image = image.resize(size, FILTERS[self.interpolation])
        right, bottom = (length - self.crop for length in image.size)
        places = [(round(right / 2.0), round(bottom / 2.0))]
        if count == 10:
            places += [(left, top) for left in (0, right) for top in (0, bottom)]
        mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (self.mean, self.std))
        crops = []
        for left, top in places:
            pixels = np.array(image.crop((left, top, left + self.crop, top + self.crop)))  # (crop, crop, 3) uint8
            values = torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float().div_(255)  # (3, crop, crop)
            crops.append(values.sub_(mean).div_(std))
        if count == 1:
            return crops[0][None]
        upright = torch.stack(crops)
        return torch.cat([upright, upright.flip(3)])

    @property
    def channels(self) -> int:
        """Of what it makes of an image."""
        return 3

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
        found = function(Image.new("RGB", (64, 48)))
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else ()
        require(
            len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2],
            f"a transform must give a tensor (3, side, side), got {shape or type(found).__name__}",
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
        pixels = torch.zeros(count, self.channels, self.crop, self.crop)
        for place, part in enumerate(self.parts):
            pixels[:, 3 * place : 3 * place + 3, : part.crop, : part.crop] = part.views(image, count)
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
        for module in self.modules():  # He's initialisation, from torch's global generator, which construction.py seeds
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

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

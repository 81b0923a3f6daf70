"""From an image to the numbers a backbone reads: resize, centre crop, scale, normalise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import torch
from PIL import Image

from actstore.errors import InvalidInputError

# What nearly every published backbone was trained with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

VIEWS = (1, 2, 10)  # of an image: its centre, with its mirror image, or five crops and theirs
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
Rgb = tuple[float, float, float]


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
            _check(isinstance(value, int) and value > 0, f"{name} must be a positive integer, got {value!r}")
        _check(self.crop <= self.resize, f"crop must not exceed resize {self.resize}, got {self.crop}")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _parse_rgb(name, getattr(self, name)))
        _check(min(self.std) > 0, f"std must be positive, got {self.std}")
        known = " or ".join(repr(name) for name in FILTERS)
        _check(self.interpolation in FILTERS, f"interpolation must be {known}, got {self.interpolation!r}")

    def __call__(self, image: Image.Image) -> torch.Tensor:
        """A PIL image in RGB -> (3, crop, crop) float32."""
        return self.views(image, 1)[0]

    def views(self, image: Image.Image, count: int) -> torch.Tensor:
        """A PIL image in RGB -> (count, 3, crop, crop): the centre, of 10 the corners too; then these mirrored."""
        _check(count in VIEWS, f"views must be 1, 2 or 10, got {count}")
        _check(image.mode == "RGB", f"expected an RGB image, got mode {image.mode!r}; use image.convert('RGB')")
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
        try:
            return cls(**data)
        except (TypeError, ValueError) as error:
            raise InvalidInputError(
                f"expected a transform with resize, crop, mean and std, got {data!r}: {error}"
            ) from error


def _parse_rgb(name: str, values: Any) -> Rgb:
    try:
        red, green, blue = (float(value) for value in values)
    except (TypeError, ValueError):
        red = green = blue = math.nan
    is_finite = all(map(math.isfinite, (red, green, blue)))
    _check(is_finite, f"{name} must be three finite numbers, one per colour channel, got {values!r}")
    return red, green, blue


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidInputError(message)

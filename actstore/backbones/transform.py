"""From an image to the numbers a backbone reads: resize, centre crop, scale, normalise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import torch
from PIL import Image

from actstore.errors import InvalidInputError

# What nearly every published backbone was trained with.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

VIEWS = (1, 10)  # of an image: its centre, or five crops and their mirror images
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
        return self._normalised(self._crop_centre(self._scaled(image)))

    def views(self, image: Image.Image, count: int) -> torch.Tensor:
        """A PIL image in RGB -> (count, 3, crop, crop): the centre alone, or it and the corners, then all mirrored."""
        _check(count in VIEWS, f"views must be 1 or 10, got {count}")
        if count == 1:
            return self(image)[None]
        scaled = self._scaled(image)
        crops = torch.stack([self._normalised(crop) for crop in (self._crop_centre(scaled), *self._corners(scaled))])
        return torch.cat([crops, crops.flip(3)])

    def _normalised(self, image: Image.Image) -> torch.Tensor:
        pixels = np.array(image)  # (crop, crop, 3) uint8
        values = torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float().div_(255)  # (3, crop, crop)
        return values.sub_(_per_channel(self.mean)).div_(_per_channel(self.std))

    def _scaled(self, image: Image.Image) -> Image.Image:
        _check(image.mode == "RGB", f"expected an RGB image, got mode {image.mode!r}; use image.convert('RGB')")
        return self._resize_shorter_side(image)

    def _resize_shorter_side(self, image: Image.Image) -> Image.Image:
        short, long = sorted(image.size)
        if short == self.resize:
            return image
        lengths = (self.resize, int(self.resize * long / short))
        width, height = lengths if image.width <= image.height else lengths[::-1]
        return image.resize((width, height), FILTERS[self.interpolation])

    def _crop_centre(self, image: Image.Image) -> Image.Image:
        left, top = (round((length - self.crop) / 2.0) for length in image.size)
        return image.crop((left, top, left + self.crop, top + self.crop))

    def _corners(self, image: Image.Image) -> Iterator[Image.Image]:
        for left in (0, image.width - self.crop):
            for top in (0, image.height - self.crop):
                yield image.crop((left, top, left + self.crop, top + self.crop))

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


def _per_channel(values: Rgb) -> torch.Tensor:
    return torch.tensor(values).view(3, 1, 1)


def _parse_rgb(name: str, values: Any) -> Rgb:
    message = f"{name} must be three finite numbers, one per colour channel, got {values!r}"
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(message) from error
    if len(numbers) != 3 or not all(math.isfinite(number) for number in numbers):
        raise InvalidInputError(message)
    return numbers[0], numbers[1], numbers[2]


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidInputError(message)

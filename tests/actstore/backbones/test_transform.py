"""Transforms against a plain reference, and torchvision's."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from actstore.backbones.network import IMAGENET_MEAN, IMAGENET_STD, Transform
from actstore.errors import InvalidInputError
from tests.actstore.backbones.examples import GREY, import_torchvision

# --- transform --------------------------------------------------------------------------------------------


def photograph(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng([width, height]).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


SIZES = [(500, 375), (375, 500), (40, 40), (41, 97), (40, 301), (33, 20), (1, 3), (256, 255)]


@pytest.mark.parametrize("size", SIZES)
def test_transform_equals_a_plain_reference(size: tuple[int, int]) -> None:
    transform = Transform(resize=40, crop=31)
    width, height = size
    new = (40, int(40 * height / width)) if width <= height else (int(40 * width / height), 40)
    pixels = np.asarray(photograph(*size).resize(new, Image.Resampling.BILINEAR), np.float32)  # (h, w, 3)
    top, left = int(round((new[1] - 31) / 2.0)), int(round((new[0] - 31) / 2.0))  # noqa: RUF046 - as the contract says
    cropped = pixels[top : top + 31, left : left + 31] / np.float32(255)
    expected = (cropped - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STD)
    result = transform(photograph(*size))
    assert result.shape == (3, 31, 31)
    assert result.dtype == torch.float32
    assert result.is_contiguous()
    np.testing.assert_allclose(result.numpy(), expected.transpose(2, 0, 1), atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_transform_equals_torchvision_s(size: tuple[int, int]) -> None:
    t = import_torchvision().transforms
    theirs = t.Compose([t.Resize(40), t.CenterCrop(31), t.ToTensor(), t.Normalize(IMAGENET_MEAN, IMAGENET_STD)])
    assert torch.equal(Transform(resize=40, crop=31)(photograph(*size)), theirs(photograph(*size)))


def test_transform_survives_json_and_pickle() -> None:
    text = json.dumps(GREY.to_json())
    assert Transform.from_json(json.loads(text)) == GREY
    assert pickle.loads(pickle.dumps(GREY)) == GREY
    assert hash(GREY) == hash(Transform.from_json(json.loads(text)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resize": 0}, "resize must be a positive integer, got 0"),
        ({"crop": 50}, "crop must not exceed resize 40, got 50"),
        ({"mean": (0.5,)}, "mean must be three finite numbers"),
        ({"mean": None}, "mean must be three finite numbers"),
        ({"std": (1, 1, 0)}, "std must be positive"),
        ({"interpolation": "nearest"}, "interpolation must be 'bilinear' or 'bicubic', got 'nearest'"),
        ({"side": 3}, "expected a transform with resize, crop, mean and std"),
    ],
)
def test_bad_transforms_say_what_is_wrong(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Transform.from_json({**GREY.to_json(), **change})


def test_transform_refuses_other_modes() -> None:
    with pytest.raises(InvalidInputError, match=r"got mode 'L'; use image\.convert"):
        GREY(Image.new("L", (50, 50)))

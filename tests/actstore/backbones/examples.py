"""What these tests share: a transform, images, and torchvision where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from actstore.backbones.network import Transform

GREY = Transform(resize=40, crop=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def import_torchvision() -> Any:
    """torchvision may be absent, or installed and broken beside another torch."""
    try:
        import torchvision.transforms
    except Exception as error:  # noqa: BLE001 - whatever it is, there is nothing to compare with
        pytest.skip(f"torchvision does not import: {error}")
    return torchvision


def images(n: int = 2, side: int = 32) -> Tensor:
    return torch.rand((n, 3, side, side), generator=torch.Generator().manual_seed(1))

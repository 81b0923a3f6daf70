"""Images as queries: run through the very backbone that made the rows of a split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from actstore.compute.device import parse_device
from actstore.errors import InvalidInputError
from actstore.extraction.recorded_network import activations_of, load_recorded, network_of
from actstore.images.image_set import ImageItem

if TYPE_CHECKING:
    from actstore.split import Split


def embed_images(split: Split, images: Sequence[Path], weights: Path | None = None, device: str = "cpu") -> Tensor:
    """(n, dim) float32 activations of image files.

    weights: the file the backbone was loaded from, where the store does not say or it has moved; another is refused.
    """
    record = network_of(split)
    if not record:
        raise InvalidInputError(
            f"split {split.name!r} of {split.store_path} was not built from images, so it is not known which backbone "
            "made its rows; search by row or by vector"
        )
    items = [ImageItem(path.name, None, str(path.parent)) for path in images]
    rows, _, failures = activations_of(load_recorded(record, weights), items, parse_device(device), record["views"])
    if failures:
        raise InvalidInputError(failures[0][1])
    return rows

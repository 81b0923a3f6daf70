"""Images as queries: run through the very backbone that made the rows of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actstore.backbones.loading import Backbone, load_backbone
from actstore.backbones.transform import Transform
from actstore.decoding import decode_batches
from actstore.device import parse_device
from actstore.errors import InvalidInputError
from actstore.extract import forward
from actstore.sources.items import ImageItem
from actstore.spec import Json

if TYPE_CHECKING:
    from actstore.split import Split

_BATCH = 32


def embed_images(split: Split, images: Sequence[Path], weights: Path | None = None, device: str = "cpu") -> Tensor:
    """(n, dim) float32 activations of image files.

    weights: the file the backbone was loaded from, where the store does not say or it has moved; another is refused.
    """
    source = next((one for one in reversed(split.committed.sources) if one.get("kind") == "images"), None)
    if source is None:
        raise InvalidInputError(
            f"split {split.name!r} of {split.store_path} was not built from images, so it is not known which backbone "
            "made its rows; search by row or by vector"
        )
    backbone, place = _load(source, weights), parse_device(device)
    backbone.module.to(place).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    items = [ImageItem(path.name, None, str(path.parent)) for path in images]
    rows = []
    for batch in decode_batches(items, Transform.from_json(source["transform"]), _BATCH, views=source.get("views", 1)):
        if batch.failures:
            raise InvalidInputError(batch.failures[0][1])
        rows.append(forward(backbone, batch, place)[source["layer"]])
    return torch.cat(rows)


def _load(source: Mapping[str, Json], weights: Path | None) -> Backbone:
    path = weights or (Path(source["weights"]) if source.get("weights") else None)
    if path is not None and not path.exists():
        raise InvalidInputError(f"the weights {path} are not there; pass --weights FILE")
    layers = () if source["layer"] == "activations" else (source["layer"],)
    for random in (False, True) if path is None else (False,):
        try:
            backbone = load_backbone(source["backbone"], path, layers, random_weights=random)
        except InvalidInputError:
            if path is not None:
                raise
            continue  # no published weights here: the store may be of random ones
        if backbone.weights_sha256 == source["weights_sha256"]:
            return backbone
    given = f"the weights in {path} are not those" if path is not None else "no weights found here are those"
    raise InvalidInputError(
        f"{given} of {source['backbone']} that made the rows (sha256 {str(source['weights_sha256'])[:12]}…); "
        "pass their file with --weights"
    )

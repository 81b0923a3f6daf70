"""The network that made a split's activations, loaded again for new images; another one is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actstore.backbones.loading import Backbone, load_backbone
from actstore.backbones.transform import Transform
from actstore.compute.device import parse_device
from actstore.errors import InvalidInputError
from actstore.extraction.forward import forward, move_to
from actstore.extraction.image_batches import decode_batches
from actstore.images.image_set import ImageItem, Loadable
from actstore.images.split_images import image_sources
from actstore.split import Split


def network_of(split: Split) -> dict[str, Any]:
    """What a store knows about the network of a split; empty where rows were imported."""
    sources = image_sources(split)
    return recorded_network(sources[-1]) if sources else {}


def recorded_network(source: Mapping[str, Any]) -> dict[str, Any]:
    """The network that a build recorded in its split's source."""
    record = {key: source.get(key) for key in ("backbone", "weights", "weights_sha256", "layer", "transform")}
    pretrained = {"pretrained": True} if source.get("pretrained") else {}
    return record | pretrained | {"views": source.get("views", 1)}


def record_of(backbone: Backbone, weights: Path | None = None) -> dict[str, Any]:
    """The same of a network at hand, as `load_backbone(…, weights)` gave it."""
    source = {
        "backbone": backbone.name, "weights": None if weights is None else str(weights.absolute()),
        "weights_sha256": backbone.weights_sha256, "layer": next(iter(backbone.layers)),
        "transform": backbone.transform.to_json(), "pretrained": backbone.pretrained,
    }  # fmt: skip
    return recorded_network(source)


def load_recorded(record: Mapping[str, Any], weights: Path | None = None) -> Backbone:
    """record: as `network_of` gives it. weights: where the file is now; by default where it was."""
    if not record.get("backbone"):
        raise InvalidInputError(
            "images need the network their activations come from, but the store does not name one: its rows were "
            "imported; give activations instead, or build the store from images with `actstore build`"
        )
    path = weights or (None if record.get("weights") is None else Path(record["weights"]))
    if path is not None and not path.is_file():
        raise InvalidInputError(f"the weights of {record['backbone']} are not at {path}; say where with --weights")
    layers = () if record["layer"] == "activations" else (record["layer"],)
    pretrained = path is None and bool(record.get("pretrained"))
    drawn = path is None and not pretrained
    backbone = load_backbone(record["backbone"], path, layers, random_weights=drawn, pretrained=pretrained)
    if drawn and backbone.weights_sha256 != record["weights_sha256"]:
        # not drawn, so installed or in torch's cache
        backbone = load_backbone(record["backbone"], None, layers, expected_sha256=record["weights_sha256"])
    if backbone.weights_sha256 != record["weights_sha256"]:
        raise InvalidInputError(
            f"the weights of {record['backbone']} in {path or 'the cache of torch'} are not those the activations were "
            f"made with (sha256 {str(backbone.weights_sha256)[:12]}…, expected {str(record['weights_sha256'])[:12]}…)"
        )
    backbone.transform = Transform.from_json(record["transform"])
    return backbone


def activations_of(
    backbone: Backbone, items: Sequence[Loadable], device: torch.device, views: int = 1, batch_size: int = 32,
    on_batch: Callable[[int], object] | None = None,
) -> tuple[Tensor, list[int], list[tuple[int, str]]]:  # fmt: skip
    """(n, dim) of the readable images, their positions among the items, and (position, reason) of the others.

    views: of each image, averaged; as many as the store has. on_batch: is told how many images each batch had.
    """
    move_to(device, backbone)
    layer, dim = next(iter(backbone.layers.items()))
    rows, positions, failures = [torch.empty(0, dim)], [], []
    for batch in decode_batches(items, backbone.transform, batch_size, views=views):
        rows.append(forward(backbone, batch, device)[layer])
        positions += batch.positions
        failures += batch.failures
        if on_batch is not None:
            on_batch(len(batch.positions) + len(batch.failures))
    return torch.cat(rows), positions, failures


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

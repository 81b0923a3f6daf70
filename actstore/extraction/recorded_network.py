"""The network that made a split's activations, loaded again for new images, another one refused; and the rows of a
build once more, which `verify --repair` writes in place of a bad chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.backbones.construction import PUBLISHED
from actstore.backbones.loading import Backbone, load_backbone
from actstore.backbones.network import Transform
from actstore.backbones.weights import published_files
from actstore.compute.device import parse_device
from actstore.errors import InvalidInputError
from actstore.extraction.build import listing_hash
from actstore.extraction.forward import columns_of, decode_batches, forward, move_to
from actstore.images.image_set import ImageItem, Loadable
from actstore.images.opening import image_sources, open_images
from actstore.layout.columns import Column
from actstore.spec import Json
from actstore.split import Split
from actstore.tables.row_source import Table


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
    name, layers = record["backbone"], () if record["layer"] == "activations" else (record["layer"],)
    ways: list[dict[str, Any]] = [{"random_weights": True}, {"expected_sha256": record["weights_sha256"]}]
    if path is not None or record.get("pretrained"):
        ways = [{"pretrained": path is None}]
    elif published_files(name, PUBLISHED.get(name, ())):  # then these are likelier than weights drawn from the seed
        ways.reverse()
    for way in ways:
        backbone = load_backbone(name, path, layers, **way)
        if backbone.weights_sha256 == record["weights_sha256"]:
            break
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


_CPU = torch.device("cpu")


def reopen_images(source: Mapping[str, Json]) -> Table:
    """Labels, ids and activations as a build recorded them in its split's sources."""
    images = open_images(source["path"]).get(source["split"])
    if images is None or listing_hash(images) != source["listing"]:
        raise InvalidInputError(f"the images in {source['path']} are no longer those the split was built from")
    skipped = {name for name, _ in source["skipped"]}
    kept = [position for position, item in enumerate(images.items) if item.id not in skipped]
    items = [images.items[position] for position in kept]
    names = [item.label for item in items]
    labels = None if None in names else np.array(names, dtype=object)
    return Table(ExtractedRows(images.items, kept, source), labels, [item.id for item in items], FactColumns(items))


class ExtractedRows:
    """Row i is the activation of item kept[i], computed in the same batch as in the build."""

    dtype = np.dtype(np.float32)

    def __init__(self, items: Sequence[Loadable], kept: list[int], source: Mapping[str, Json]) -> None:
        self._items, self._kept, self._source = items, kept, source
        self._backbone = load_recorded(recorded_network(source))
        move_to(_CPU, self._backbone)
        self.shape = (len(kept), self._backbone.layers[source["layer"]])

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        if start >= stop:
            return
        first, last = self._kept[start], self._kept[stop - 1]
        size, views = self._source["batch_size"], self._source.get("views", 1)
        items = self._items[: (last // size + 1) * size]
        for batch in decode_batches(items, self._backbone.transform, size, first, views=views):
            wanted = [index for index, position in enumerate(batch.positions) if first <= position <= last]
            if wanted:
                yield forward(self._backbone, batch, _CPU)[self._source["layer"]][wanted].numpy()


class FactColumns(Mapping[str, Column]):
    """Columns of images that were built long ago; they are opened once a value is asked for."""

    _names = tuple(columns_of([]))

    def __init__(self, items: Sequence[Loadable]) -> None:
        self._items = items

    @cached_property
    def _read(self) -> dict[str, Column]:
        return columns_of([item.load_with_facts()[1] for item in self._items])

    def __getitem__(self, name: str) -> Column:
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

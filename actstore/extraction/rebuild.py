"""The rows of a build once more, from its images: what `verify --repair` writes in place of a bad chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.backbones.loading import Backbone
from actstore.errors import InvalidInputError
from actstore.extraction.fact_columns import FactColumns
from actstore.extraction.forward import forward
from actstore.extraction.image_batches import decode_batches
from actstore.extraction.recorded_network import load_recorded, recorded_network
from actstore.extraction.target import listing_hash
from actstore.images.image_set import Loadable
from actstore.images.opening import open_images
from actstore.spec import Json
from actstore.tables.row_source import Table


def reopen_images(source: Mapping[str, Json]) -> Table:
    """Labels, ids and activations as a build recorded them in its split's sources."""
    images = open_images(source["path"]).get(source["split"])
    if images is None or listing_hash(images) != source["listing"]:
        raise InvalidInputError(f"the images in {source['path']} are no longer those the split was built from")
    backbone = load_recorded(recorded_network(source))
    skipped = {name for name, _ in source["skipped"]}
    kept = [position for position, item in enumerate(images.items) if item.id not in skipped]
    rows = ExtractedRows(images.items, kept, backbone, source["layer"], source["batch_size"], source.get("views", 1))
    names = [images.items[position].label for position in kept]
    labels = None if None in names else np.array(names, dtype=object)
    items = [images.items[position] for position in kept]
    return Table(rows, labels, [item.id for item in items], FactColumns(items))


class ExtractedRows:
    """Row i is the activation of item kept[i], computed in the same batch as in the build."""

    def __init__(
        self, items: Any, kept: list[int], backbone: Backbone, layer: str, batch_size: int, views: int = 1
    ) -> None:
        self._items, self._kept, self._views = items, kept, views
        self._backbone, self._layer, self._batch_size = backbone, layer, batch_size
        backbone.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.shape = (len(kept), backbone.layers[layer])
        self.dtype = np.dtype(np.float32)

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        if start >= stop:
            return
        first, last = self._kept[start], self._kept[stop - 1]
        items: list[Loadable] = self._items[: (last // self._batch_size + 1) * self._batch_size]
        for batch in decode_batches(items, self._backbone.transform, self._batch_size, first, views=self._views):
            wanted = [index for index, position in enumerate(batch.positions) if first <= position <= last]
            if wanted:
                yield forward(self._backbone, batch, torch.device("cpu"))[self._layer][wanted].numpy()

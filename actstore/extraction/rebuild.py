"""The rows of a build once more, from its images: what `verify --repair` writes in place of a bad chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.extraction.forward import forward, move_to
from actstore.extraction.image_batches import columns_of, decode_batches
from actstore.extraction.recorded_network import load_recorded, recorded_network
from actstore.extraction.target import listing_hash
from actstore.images.image_set import Loadable
from actstore.images.opening import open_images
from actstore.layout.columns import Column
from actstore.spec import Json
from actstore.tables.row_source import Table

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

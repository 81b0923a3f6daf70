"""The images that the rows of a split were made of, where they are at hand."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from PIL import Image

from actstore.errors import ActstoreError
from actstore.images.image_set import ImageItem, Loadable
from actstore.images.opening import open_images
from actstore.spec import Json
from actstore.split import Split


def image_sources(split: Split) -> list[Mapping[str, Json]]:
    """What `actstore build` was told of each part of a split; none for imported rows."""
    origins = [source.get("from", source) for source in split.committed.sources]  # of rows chosen from a store
    return [source for source in origins if source.get("kind") == "images"]


class SplitImages:
    """folder: where ids are paths, for rows that were imported; None: as the split records."""

    def __init__(self, split: Split, folder: Path | None = None) -> None:
        self.split = split
        self.folder = folder

    @cached_property
    def _items(self) -> Mapping[str, Loadable]:
        """Id -> image."""
        items: dict[str, Loadable] = {}
        for source in image_sources(self.split):
            sets = open_images(str(source["path"]))
            name = str(source.get("split", self.split.name))
            items |= {item.id: item for item in sets[name].items} if name in sets else {}
        if not items:
            raise ActstoreError(f"the images of {self.split.path} are not at hand")
        return items

    def load(self, row: int) -> Image.Image:
        """The image of a row in mode RGB; an ActstoreError where it cannot be read."""
        name = self.split.ids[row]
        if self.folder is not None:
            return ImageItem(name, None, str(self.folder)).load()
        if name not in self._items:
            raise ActstoreError(f"the image {name} of {self.split.path} is not at hand")
        return self._items[name].load()

    def thumbnail(self, row: int, side: int) -> Image.Image:
        """The centre square, (side, side) pixels."""
        image = self.load(row)
        short = min(image.size)
        left, top = (image.width - short) // 2, (image.height - short) // 2
        square = image.crop((left, top, left + short, top + short))
        return square.resize((side, side), Image.Resampling.BICUBIC)

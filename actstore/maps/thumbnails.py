"""Images of rows, in sheets that a page shows parts of; as many as a page should hold, no more."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from actstore.errors import ActstoreError
from actstore.images.html_page import jpeg_bytes
from actstore.images.opening import SplitImages, image_sources
from actstore.split import Split

DEFAULT_THUMBNAILS = 10_000
SIDE = 64  # pixels
ACROSS = 12  # thumbnails of a sheet, and as many down
_TRIED = 50  # images; if none of the first can be read, none will


@dataclass(frozen=True)
class Thumbnails:
    """points (m,): those that have one, in the order in which `sheets`, JPEG, hold them. note: why some have none."""

    points: NDArray[np.int64]
    sheets: tuple[bytes, ...]
    note: str | None = None


NOBODY = Thumbnails(np.empty(0, np.int64), ())


def make_thumbnails(
    split: Split,
    rows: NDArray[np.int64],
    points: NDArray[np.int64],
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Thumbnails:
    """Of some points of a map, whose rows (n,) are these. folder: where ids are paths; None: the images that the split
    was built from."""
    if not len(points) or (folder is None and not image_sources(split)):
        return NOBODY
    images = SplitImages(split, folder)

    def load(point: int) -> Image.Image | None:
        try:
            return images.thumbnail(int(rows[point]), SIDE)
        except (ActstoreError, OSError):
            return None

    found: list[int] = []
    sheets: list[bytes] = []
    pending: list[Image.Image] = []
    load(int(points[0]))  # lists the images once, not in every thread
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(points), _TRIED):
            part = points[start : start + _TRIED].tolist()
            for point, image in zip(part, pool.map(load, part), strict=True):
                if image is not None:
                    found.append(point)
                    pending.append(image)
                if len(pending) == ACROSS**2:
                    sheets.append(_sheet(pending))
                    pending = []
            if progress is not None:
                progress(len(part))
            if not found:
                where = folder or "what the split was built from"
                said = f"no thumbnails: none of {len(part)} images could be read in {where}"
                return Thumbnails(NOBODY.points, (), said)
    sheets += [_sheet(pending)] if pending else []
    lacking = len(points) - len(found)
    note = f"{lacking:,} images could not be read and have no thumbnail" if lacking else None
    return Thumbnails(np.array(found, np.int64), tuple(sheets), note)


def _sheet(images: list[Image.Image]) -> bytes:
    down = -(-len(images) // ACROSS)
    sheet = Image.new("RGB", (ACROSS * SIDE, down * SIDE))
    for place, image in enumerate(images):
        sheet.paste(image, (place % ACROSS * SIDE, place // ACROSS * SIDE))
    return jpeg_bytes(sheet)

"""Image files in the layouts that are read, for the tests here."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from actstore.images.image_set import ImageItem, ImageSet
from actstore.images.opening import find_images

KIT_FOX, TENCH, GOLDFISH = "n02119789", "n01440764", "n01443537"


def picture(name: str) -> bytes:
    """A tiny image whose bytes are its own."""
    colour = tuple(np.frombuffer(name.encode("utf-8", "replace").ljust(3)[-3:], np.uint8).tolist())
    data = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(data, "PNG", pnginfo=None)
    return data.getvalue() + name.encode("utf-8", "replace")  # bytes after the end of a PNG are ignored


def write(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(name))
    return root


def write_tar(path: Path, members: dict[str, bytes] | Iterable[str], prefix: str = "") -> Path:
    contents = members if isinstance(members, dict) else {name: picture(name) for name in members}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in contents.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def listed(images: ImageSet[ImageItem]) -> list[tuple[str, str | None]]:
    return [(item.id, item.label) for item in images.items]


def only(root: Path) -> ImageSet[ImageItem]:
    found = find_images(root)
    assert list(found) == ["train"]
    return found["train"]

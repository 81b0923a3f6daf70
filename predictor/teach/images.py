"""Images as they came, each in a file that its content names; thumbnails are made again where they are not at hand."""

from __future__ import annotations

import hashlib
import io
import os
import re
from contextlib import AbstractContextManager
from pathlib import Path

from PIL import Image
from torch import Tensor

from actstore.images.decode import decode
from actstore.storage.atomic_file import write_atomic
from predictor.teach.refusal import RefusalError

THUMBNAIL = 192  # pixels of the longer side
_KEY = re.compile(r"[0-9a-f]{64}")


def key_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def row_key(row: Tensor) -> str:
    """Of an activation (dim,) that no image gives."""
    return key_of(row.numpy().tobytes())


def parse_key(text: str) -> str:
    """A content hash and nothing else: what a browser sends never becomes a path unseen."""
    if not _KEY.fullmatch(text):
        raise RefusalError(404, "there is no such image")
    return text


class ImageFolder:
    """FOLDER/images/abcd…: the bytes as they came. FOLDER/thumbnails/: small WebP files, made again at any time."""

    def __init__(self, folder: Path) -> None:
        self._images, self._thumbnails = folder / "images", folder / "thumbnails"

    def put(self, data: bytes) -> str:
        """On disk when this returns. Returns the key."""
        key = key_of(data)
        path = self._path(key)
        if not path.exists():  # written whole or not at all
            write_atomic(path, data)
        return key

    def read(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise RefusalError(404, "there is no such image") from None

    def thumbnail(self, key: str, decoding: AbstractContextManager[object]) -> bytes:
        """decoding: entered where the image has to be decoded again."""
        path = self._thumbnails / f"{parse_key(key)}.webp"
        if path.exists():
            return path.read_bytes()
        with decoding:
            made = thumbnail(decode(self.read(key), "the image"))
        self.keep_thumbnail(key, made)
        return made

    def keep_thumbnail(self, key: str, made: bytes) -> None:
        """Not flushed: it can be made again."""
        self._thumbnails.mkdir(exist_ok=True)
        path = self._thumbnails / f"{key}.webp"
        partial = path.with_name(f"{path.name}.{os.getpid()}.part")
        partial.write_bytes(made)
        partial.replace(path)

    def _path(self, key: str) -> Path:
        return self._images / parse_key(key)


def thumbnail(image: Image.Image) -> bytes:
    """A WebP whose longer side has 192 pixels; small drawings grow without being blurred."""
    scale = THUMBNAIL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    method = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    small = image.resize(size, method, reducing_gap=2.0)
    out = io.BytesIO()
    small.save(out, "WEBP", quality=82, method=2)
    return out.getvalue()

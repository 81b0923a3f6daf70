"""Images as they came, thumbnails, and what the network made of them, each in a file that the image's content names."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from actstore.images.decode import decode
from actstore.storage.atomic_file import npy_bytes, storage_errors, sync_directory, write_atomic
from predictor.teach.actions import RefusalError

THUMBNAIL = 192  # pixels of the longer side
IN_MEMORY = 20_000  # activations; those of examples are needed at every change
_KEY = re.compile(r"[0-9a-f]{64}")
Value = TypeVar("Value")


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
    """FOLDER/images/KEY: the bytes as they came. FOLDER/thumbnails/KEY.webp and FOLDER/activations/KEY.npy, (dim,)
    float32: not flushed to disk, as an image gives them again. inherited: activations that no image gives."""

    def __init__(self, folder: Path, inherited: Mapping[str, Tensor] | None = None) -> None:
        self._inherited, self._memory = inherited or {}, dict[str, Tensor]()
        self._images, self._thumbnails, self._activations = self._parts = [
            folder / name for name in ("images", "thumbnails", "activations")
        ]
        for part in self._parts:
            part.mkdir(exist_ok=True)

    def put(self, key: str, data: bytes) -> None:
        """On disk when this returns."""
        if not (self._images / key).exists():  # written whole or not at all
            write_atomic(self._images / key, data)

    def read(self, key: str) -> bytes:
        try:
            return (self._images / parse_key(key)).read_bytes()
        except FileNotFoundError:
            raise RefusalError(404, "there is no such image") from None

    def thumbnail(self, key: str, decoding: AbstractContextManager[object]) -> bytes:
        """decoding: entered where the image has to be decoded again."""
        path = self._thumbnails / f"{parse_key(key)}.webp"
        if path.exists():
            return path.read_bytes()
        with decoding:
            made = thumbnail(decode(self.read(key), "the image"))
        self.put_thumbnail(key, made)
        return made

    def put_thumbnail(self, key: str, made: bytes) -> None:
        _write_unflushed(self._thumbnails / f"{key}.webp", made)

    def activation(self, key: str) -> Tensor | None:
        """What the network made of an image, (dim,); None where it is not at hand."""
        for table in (self._inherited, self._memory):
            if key in table:
                return table[key]
        try:
            values = np.load(self._activations / f"{key}.npy", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None  # not there, or cut off by a power cut
        if values.dtype != np.float32 or values.ndim != 1 or not np.isfinite(values).all():
            return None
        keep_newest(self._memory, key, torch.from_numpy(values), IN_MEMORY)
        return self._memory[key]

    def put_activation(self, key: str, activation: Tensor, is_only_copy: bool = False) -> None:
        """is_only_copy: no image gives it again, so that it is on disk when this returns."""
        write = write_atomic if is_only_copy else _write_unflushed
        write(self._activations / f"{key}.npy", npy_bytes(activation.numpy()))

    def take_over(self, other: ImageFolder) -> None:
        """All files of another folder on the same disk; they are here, and on disk, when this returns."""
        for source, target in zip(other._parts, self._parts, strict=True):
            with storage_errors(target):
                for path in source.iterdir():
                    path.replace(target / path.name)
                sync_directory(target)


def keep_newest(table: dict[str, Value], key: str, value: Value, most: int) -> None:
    """Put a value into a table that forgets the oldest beyond so many."""
    while len(table) >= most:
        del table[next(iter(table))]
    table[key] = value


def thumbnail(image: Image.Image) -> bytes:
    """A WebP whose longer side has 192 pixels; small drawings grow without being blurred."""
    scale = THUMBNAIL / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    method = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    small = image.resize(size, method, reducing_gap=2.0)
    out = io.BytesIO()
    small.save(out, "WEBP", quality=82, method=2)
    return out.getvalue()


def _write_unflushed(path: Path, data: bytes) -> None:
    """Whole or not at all where the process is killed; not where the power goes."""
    partial = path.with_name(f"{path.name}.part")
    partial.write_bytes(data)
    partial.replace(path)

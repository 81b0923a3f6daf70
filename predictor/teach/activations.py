"""What the network made of an image, by the image's content: computed once, kept in a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from actstore.storage.atomic_file import npy_bytes, write_atomic

KEPT = 20_000  # activations in memory; those of examples are needed at every change


class ActivationCache:
    """FOLDER/activations/KEY.npy, (dim,) float32. Keys are hashes: they make no path.

    Files are not flushed where an image can give them again."""

    def __init__(self, folder: Path, known: Mapping[str, Tensor], compute: Callable[[str], Tensor]) -> None:
        """known: activations that no image gives. compute: from the image of a key."""
        self._folder, self._known, self._compute = folder / "activations", dict(known), compute
        self._memory: dict[str, Tensor] = {}
        self._folder.mkdir(exist_ok=True)

    def get(self, key: str) -> Tensor:
        """(dim,); computed where it is not at hand."""
        found = self.find(key)
        if found is None:
            found = self._compute(key)
            self.put(key, found)
        return found

    def find(self, key: str) -> Tensor | None:
        found = self._known.get(key)
        if found is None:
            found = self._memory.get(key)
        if found is None and (found := self._load(key)) is not None:
            self._remember(key, found)
        return found

    def put(self, key: str, activation: Tensor, is_only_copy: bool = False) -> None:
        """is_only_copy: no image gives it again, so that it is on disk when this returns."""
        self._remember(key, activation)
        path = self._path(key)
        if is_only_copy:
            write_atomic(path, npy_bytes(activation.numpy()))
            return
        partial = path.with_name(f"{path.name}.part")
        with partial.open("wb") as file:
            np.save(file, activation.numpy(), allow_pickle=False)
        partial.replace(path)

    def _remember(self, key: str, activation: Tensor) -> None:
        while len(self._memory) >= KEPT:
            del self._memory[next(iter(self._memory))]
        self._memory[key] = activation

    def _load(self, key: str) -> Tensor | None:
        try:
            values = np.load(self._path(key), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None  # not there, or cut off by a power cut
        if values.dtype != np.float32 or values.ndim != 1 or not np.isfinite(values).all():
            return None
        return torch.from_numpy(values)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.npy"

"""Chunks of remote stores on this machine's disk: fetched once, checked, then mapped like those of a local store.

DIR/STORE/SPLIT/CHUNK-CRC is a raw chunk file. Its name holds the crc that the store's ledger gives
the chunk, so a file is never taken for newer or older rows; after an append only the chunks that changed are fetched.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from actstore.errors import InvalidInputError
from actstore.storage.atomic_file import CRC_BYTES, Data, chunk_parts, storage_errors, write_atomic
from actstore.storage.file_lock import FileLock

DEFAULT_LIMIT = 100 << 30
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}  # powers of two


@dataclass(frozen=True)
class CacheSpec:
    """A folder, and how many bytes it may hold in all."""

    folder: Path
    limit: int = DEFAULT_LIMIT

    def folder_of(self, store: str) -> Path:
        """Where the chunks of a store lie; the name says which store to a person, the hash to the program."""
        plain = re.sub(r"\W+", "-", store.partition("://")[2])[-60:]
        return self.folder / f"{plain}-{hashlib.sha256(store.encode()).hexdigest()[:12]}"


def parse_size(text: str) -> int:
    """ "20G", "500 MB", "1.5TiB" or a number of bytes -> bytes, in powers of 1024."""
    matched = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if matched is None:
        raise InvalidInputError(f"a size is a number of bytes such as 20G or 500M, got {text!r}")
    return int(float(matched[1]) * (1 << _UNITS[matched[2].upper()]))


class ChunkCache:
    """The cached chunks of one split."""

    def __init__(self, spec: CacheSpec, store: str, split: str, crcs: list[int], chunk_bytes: int) -> None:
        self._spec, self._bytes = spec, chunk_bytes + CRC_BYTES
        folder = spec.folder_of(store) / split
        self.paths = [folder / f"{chunk}-{crc:08x}" for chunk, crc in enumerate(crcs)]

    def has(self, chunk: int) -> bool:
        """Whether the chunk is here, whole; a file of another size or another crc at its end is dropped."""
        path = self.paths[chunk]
        try:
            with path.open("rb") as file:
                file.seek(-CRC_BYTES, os.SEEK_END)
                whole = file.tell() + CRC_BYTES == self._bytes
                sound = whole and f"{int.from_bytes(file.read(), 'little'):08x}" == path.name.rpartition("-")[2]
        except OSError:
            return False
        if not sound:
            path.unlink(missing_ok=True)
            return False
        with suppress(OSError):
            os.utime(path)  # used now: the last to go when room is needed
        return True

    def has_room(self) -> bool:
        """Whether a chunk more can be kept, if others are dropped for it."""
        return self._droppable() is not None

    def add(self, chunk: int, values: Data, crc: int) -> bool:
        """Keep a chunk whose values were checked against `crc`; False where there is no room for it."""
        path = self.paths[chunk]
        with storage_errors(path), FileLock(self._spec.folder / ".lock"):
            dropped = self._droppable()
            if dropped is None:
                return False
            for old in dropped:
                old.unlink(missing_ok=True)
            write_atomic(path, *chunk_parts(values, crc))
        return True

    def _droppable(self) -> list[Path] | None:
        """What has to go for one chunk more, least recently used first; None where that does not suffice.

        Chunks of this split stay: a store larger than the cache would otherwise push out what it needs next.
        """
        files = _files(self._spec.folder)
        total, keep, dropped = sum(size for _, size, _ in files), set(self.paths), []
        for _, size, path in sorted(files):
            if total + self._bytes <= self._spec.limit:
                break
            if path not in keep:
                dropped.append(path)
                total -= size
        return dropped if total + self._bytes <= self._spec.limit else None


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """(last used, bytes, path) of every cached chunk, and of nothing else that may lie in the folder."""
    files = []
    for store in folder.glob("*/"):
        if re.fullmatch(r".*-[0-9a-f]{12}", store.name):
            for path in store.glob("*/*"):
                if re.fullmatch(r"[0-9]+-[0-9a-f]{8}(\.part)?", path.name):
                    with suppress(FileNotFoundError):
                        facts = path.stat()
                        files.append((facts.st_mtime, facts.st_size, path))
    return files

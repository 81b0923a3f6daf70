"""Which sources a split has had: a file is known again by what is in it, wherever it lies by now."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from actstore.spec import Json
from actstore.storage.atomic_file import CRC_BYTES, crc32c

CONTENT = "content"
_FILES = ("labels", "ids", "classes", "columns")
_PIECE = 1 << 16  # bytes


def find_source(
    sources: Sequence[Mapping[str, Json]], source: Mapping[str, Json], content: Callable[[], str] | None = None
) -> Mapping[str, Json] | None:
    """The earlier source that gave the same rows. content: of the new one, asked for where sizes are the same.

    Sources without a content (generated rows, or stores of older versions) are compared by what they say of themselves.
    """
    for before in sources:
        if content is not None and CONTENT in before:
            if _sizes(before) == _sizes(source) and before[CONTENT] == content():
                return before
        elif {key: value for key, value in before.items() if key not in ("rows", CONTENT)} == dict(source):
            return before
    return None


def _sizes(source: Mapping[str, Json]) -> list[Json]:
    return [source.get("size"), *(source.get(name, {}).get("size") for name in _FILES), source.get("column")]


class FileContent:
    """Names the rows that a source of kind "file" gives: its bytes, those of the files beside it, and which array.

    sha256 over the crc32c of every 64 KiB: several times the rate of an import, where sha256 of all bytes (0.5 GB/s)
    would halve it. `begin` reads the files on a thread of its own, side by side with the import.
    """

    def __init__(self, source: Mapping[str, Json]) -> None:
        self._source = source
        self._found: str | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if self._found is None and self._thread is None:
            self._thread = threading.Thread(target=self._read_early, name="actstore-content", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def __call__(self) -> str:
        if self._thread is not None:
            self._thread.join()
        if self._found is None:
            self._read()
        assert self._found is not None
        return self._found

    def _read_early(self) -> None:
        with suppress(OSError):  # `__call__` reads again, and raises it
            self._read()

    def _read(self) -> None:
        source, digest = self._source, hashlib.sha256()
        parts = {name: source[name]["path"] for name in _FILES if name in source}
        features = [source["column"]] if "column" in source else []
        digest.update(json.dumps([source["array"], source["split"], sorted(parts), *features]).encode())
        for path in (source["path"], *parts.values()):
            with Path(path).open("rb") as file:
                while piece := file.read(_PIECE):
                    if self._stopped.is_set():
                        return
                    digest.update(crc32c(piece).to_bytes(CRC_BYTES, "little"))
            digest.update(b"end")
        self._found = "sha256:" + digest.hexdigest()

"""A file that only grows: a line per action, on disk before the action is answered.

A line is the crc32 of its JSON as eight hex digits, a space and the JSON. A line without its end was being written when
the process was killed and was never answered: it is cut off. Any other line that does not fit is damage, and refused.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

from actstore.errors import DamagedError
from actstore.storage.atomic_file import storage_errors, sync_directory, write_all


class Journal:
    def __init__(self, path: Path) -> None:
        """entries: what the file held when it was opened."""
        self._path = path
        with storage_errors(path):
            is_new = not path.exists()
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            if is_new:
                sync_directory(path.parent)
        self.entries, self._size = self._read()

    def append(self, entry: dict[str, Any]) -> None:
        """Durable when this returns; where the disk refuses, the file is as it was."""
        line = _line(entry)
        with storage_errors(self._path):
            try:
                os.lseek(self._descriptor, self._size, os.SEEK_SET)
                write_all(self._descriptor, memoryview(line))
                os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, self._size)
                raise
        self._size += len(line)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _read(self) -> tuple[list[dict[str, Any]], int]:
        data = self._path.read_bytes()
        whole, _, rest = data.rpartition(b"\n")
        if rest:
            with storage_errors(self._path):
                os.ftruncate(self._descriptor, len(data) - len(rest))
        lines = whole.split(b"\n") if whole else []
        return [self._parse(number, line) for number, line in enumerate(lines, 1)], len(data) - len(rest)

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            if int(line[:8], 16) != zlib.crc32(line[9:]):
                raise ValueError("its checksum differs")
            found = json.loads(line[9:])
            if not isinstance(found, dict):
                raise ValueError("it is no action")
        except ValueError as error:
            raise DamagedError(
                f"{self._path}: line {number:,} is damaged ({error}); remove it and what follows to go on from there, "
                "or choose another --session"
            ) from None
        return found


def _line(entry: dict[str, Any]) -> bytes:
    text = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)

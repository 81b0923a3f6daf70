"""A file that only grows: a line per action, on disk before the action is answered.

A line is the crc32 of its JSON as eight hex digits, a space and the JSON. A line without its end was being written when
the process was killed and was never answered: it is cut off. Any other line that does not fit is damage, and refused.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from actstore.errors import DamagedError
from actstore.storage.atomic_file import sync_directory
from actstore.storage.file_lock import FileLock
from actstore.storage.owned_log import LockedFile


class Journal(LockedFile):
    """entries: what the file held when it was opened. As long as it is open, no other process works in its folder."""

    def __init__(self, path: Path) -> None:
        refusal = f"another `ppa teach` serves {path.parent}; use its page, end it, or choose another --session"
        is_new, self.path = not path.exists(), path
        FileLock.__init__(self, path, refusal)
        try:
            if is_new:
                sync_directory(path.parent)
            whole, _, rest = path.read_bytes().rpartition(b"\n")
            if rest:
                self.truncate(self.size() - len(rest))
            lines = whole.split(b"\n") if whole else []
            self.entries = [self._parse(number, line) for number, line in enumerate(lines, 1)]
        except BaseException:
            self.close()
            raise

    def append_entry(self, entry: dict[str, Any]) -> None:
        """Durable when this returns; where the disk refuses, the file is as it was."""
        text = json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()
        self.append(b"%08x %b\n" % (zlib.crc32(text), text))

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            if int(line[:8], 16) != zlib.crc32(line[9:]):
                raise ValueError("its checksum differs")
            entry = json.loads(line[9:])
            if not isinstance(entry, dict):
                raise ValueError("it is no action")
        except ValueError as error:
            raise DamagedError(
                f"{self.path}: line {number:,} is damaged ({error}); remove it and what follows to go on from there, "
                "or choose another --session"
            ) from None
        return entry

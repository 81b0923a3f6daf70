"""Logs of one writer: a file that is appended to, and that nobody else appends to as long as it is open."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from actstore.errors import LockedError
from actstore.storage.atomic_file import storage_errors, write_all
from actstore.storage.file_lock import FileLock

if TYPE_CHECKING:
    from actstore.storage.object_path import ObjectPath, Version


class OwnedLog(Protocol):
    """As long as it can be appended to, nobody else writes to the split that it belongs to."""

    def append(self, line: bytes) -> None: ...
    def truncate(self, length: int) -> None: ...
    def require_own(self) -> None:
        """LockedError where somebody else has begun to write."""

    def settle(self) -> None:
        """What was appended is final."""

    def size(self) -> int: ...
    def close(self) -> None: ...


class LockedFile(FileLock):
    """A log on disk. Holding it open is holding its lock."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, f"another process is writing to {path.parent.parent}; wait for it to end, or stop it")
        self.path = path

    def append(self, line: bytes) -> None:
        before = self.size()
        with storage_errors(self.path):
            try:
                write_all(self.descriptor, memoryview(line))
                os.fsync(self.descriptor)
            except OSError:
                os.ftruncate(self.descriptor, before)  # no half line
                raise

    def truncate(self, length: int) -> None:
        with storage_errors(self.path):
            os.ftruncate(self.descriptor, length)
            os.fsync(self.descriptor)

    def require_own(self) -> None:
        """The lock sees to it."""

    def settle(self) -> None:
        """Every line was flushed to disk."""

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size


class TokenedObject:
    """A log in a bucket, where nothing can be appended to or locked: it is written anew for each line, on condition
    that nobody else has done so meanwhile.

    While it is open it ends in a token of its writer, without a line break, which no reader counts. The
    next writer that opens it puts its own there, and the earlier one is refused from then on: a killed one leaves no
    lock behind.
    """

    def __init__(self, path: ObjectPath) -> None:
        self.path = path
        self._token = b"writing " + uuid.uuid4().hex.encode()
        self._open = True
        data, self._version = self._read()
        self._data = data[: data.rfind(b"\n") + 1]
        self._replace(self._data)

    def append(self, line: bytes) -> None:
        self._replace(self._data + line)

    def truncate(self, length: int) -> None:
        if length < len(self._data):
            self._replace(self._data[:length])

    def require_own(self) -> None:
        if not self._open or not self._read()[0].endswith(self._token):
            raise self._taken_over()

    def settle(self) -> None:
        if self._open:
            self._open = False
            self._replace(self._data)

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        with suppress(LockedError, OSError):  # a token that stays behind does no harm
            self.settle()

    def _replace(self, data: bytes) -> None:
        text = data + self._token if self._open else data
        try:
            self._version = self.path.put(text, self._version)
        except (LockedError, FileNotFoundError):
            self._open = False
            raise self._taken_over() from None
        self._data = data

    def _read(self) -> tuple[bytes, Version]:
        """What is there now, and its version: none where there is nothing yet."""
        try:
            data, version = self.path.read_version()
        except FileNotFoundError:
            return b"", {}
        return bytes(data), version

    def _taken_over(self) -> LockedError:
        return LockedError(f"another process has begun to write to {self.path.parent.parent}; this one stops")

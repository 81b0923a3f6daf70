"""The ledger of a split: one line per chunk that is safely on disk, and the lock of its writer.

It lies inside the array's own folder, where Zarr readers look for chunks by name and nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import uuid
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from actstore.errors import DamagedError, LockedError
from actstore.storage.atomic_file import storage_errors, write_all
from actstore.storage.checksum import sealed, unsealed
from actstore.storage.object_path import ObjectPath, Version
from actstore.storage.place import Place

LEDGER = "ledger.jsonl"


@dataclass(frozen=True)
class Entry:
    """Chunk number, rows in use, crc32c of its raw values (padding included), size of its file.

    file_crc: crc32c of the whole file where the values are encoded in it; a raw file carries its own.
    """

    chunk: int
    rows: int
    crc: int
    stored: int
    file_crc: int | None = None

    def line(self) -> bytes:
        data: dict[str, int | str] = {
            "chunk": self.chunk,
            "rows": self.rows,
            "crc": f"{self.crc:08x}",
            "bytes": self.stored,
        }
        if self.file_crc is not None:
            data["file_crc"] = f"{self.file_crc:08x}"
        return json.dumps(sealed(data)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Self:
        data = unsealed(json.loads(line))
        file_crc = int(data["file_crc"], 16) if "file_crc" in data else None
        return cls(data["chunk"], data["rows"], int(data["crc"], 16), data["bytes"], file_crc)


def read_ledger(array: Place) -> tuple[list[Entry], int]:
    """The newest entry of every chunk in order, and the length in bytes of the whole lines.

    A last line without its line break is a write that was killed: it does not count.
    """
    lines, length = read_lines(array)
    newest = {entry.chunk: entry for entry in lines}
    entries = [newest[chunk] for chunk in sorted(newest)]
    if [entry.chunk for entry in entries] != list(range(len(entries))):
        raise DamagedError(f"{array / LEDGER} skips a chunk: found {sorted(newest)[:5]}…")
    return entries, length


def read_lines(array: Place) -> tuple[list[Entry], int]:
    """Every whole line, older states of a chunk included, and their length in bytes."""
    path = array / LEDGER
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = b""
    whole = data[: data.rfind(b"\n") + 1]
    entries = []
    for number, line in enumerate(whole.split(b"\n")[:-1], 1):
        try:
            entries.append(Entry.parse(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{path} line {number} is damaged ({error})") from error
    return entries, len(whole)


def content_hash(dtype: str, dim: int, entries: Iterable[Entry], labels_crc: int, ids_crc: int) -> str:
    """Names the content of a split: equal for equal rows, labels, ids and chunking."""
    chunks = [[entry.rows, entry.crc] for entry in entries]
    text = json.dumps([dtype, dim, chunks, labels_crc, ids_crc], separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class Ledger(Protocol):
    """The ledger open for writing: as long as it can be appended to, nobody else writes to the split."""

    def append(self, entry: Entry) -> None: ...
    def truncate(self, length: int) -> None: ...
    def require_own(self) -> None:
        """LockedError where somebody else has begun to write."""

    def settle(self) -> None:
        """What was appended is final."""

    def size(self) -> int: ...
    def close(self) -> None: ...


def open_ledger(array: Place) -> Ledger:
    return LedgerFile(array) if isinstance(array, Path) else LedgerObject(array)


class LedgerFile:
    """The ledger open for writing. Holding it is holding the split's lock; a killed process lets go."""

    def __init__(self, array: Path) -> None:
        self.path = array / LEDGER
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise LockedError(f"another process is writing to {array.parent}; wait for it to end, or stop it") from None
        self._close = weakref.finalize(self, os.close, self._descriptor)  # a writer that is dropped lets go too

    def append(self, entry: Entry) -> None:
        before = self.size()
        with storage_errors(self.path):
            try:
                write_all(self._descriptor, memoryview(entry.line()))
                os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, before)  # no half line
                raise

    def truncate(self, length: int) -> None:
        with storage_errors(self.path):
            os.ftruncate(self._descriptor, length)
            os.fsync(self._descriptor)

    def require_own(self) -> None:
        """The lock sees to it."""

    def settle(self) -> None:
        """Every line was flushed to disk."""

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        self._close()  # also releases the lock


class LedgerObject:
    """The ledger in a bucket, where nothing can be appended to or locked: it is written anew for each chunk, on
    condition that nobody else has done so meanwhile.

    While it is open it ends in a token of its writer, without a line break, which no reader counts. Who opens it
    next puts their own there, and the earlier writer is refused from then on: a killed one leaves no lock behind.
    """

    def __init__(self, array: ObjectPath) -> None:
        self.path = array / LEDGER
        self._token = b"writing " + uuid.uuid4().hex.encode()
        self._open = True
        data, self._version = self._read()
        self._data = data[: data.rfind(b"\n") + 1]
        self._replace(self._data)

    def append(self, entry: Entry) -> None:
        self._replace(self._data + entry.line())

    def truncate(self, length: int) -> None:
        if length < len(self._data):
            self._replace(self._data[:length])

    def require_own(self) -> None:
        if not self._open or not self._read()[0].endswith(self._token):
            raise LockedError(f"another process has begun to write to {self.path.parent.parent}; this one stops")

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
            version = self.path.put(text, self._version)
        except (LockedError, FileNotFoundError):
            # a put whose answer was lost is sent again by the client, and then meets what it has itself written
            there, version = self._read()
            if there != text:
                self._open = False
                raise LockedError(
                    f"another process has begun to write to {self.path.parent.parent}; this one stops"
                ) from None
        self._data, self._version = data, version

    def _read(self) -> tuple[bytes, Version]:
        """What is there now, and its version: none where there is nothing yet."""
        try:
            data, version = self.path.read()
        except FileNotFoundError:
            return b"", {}
        return bytes(data), version


def has_writer(array: Place) -> bool:
    """Whether a ledger in a bucket ends in a token: somebody writes there, or was killed."""
    if isinstance(array, Path):
        return False  # the lock tells
    try:
        data = (array / LEDGER).read_bytes()
    except FileNotFoundError:
        return False
    return bool(data) and not data.endswith(b"\n")

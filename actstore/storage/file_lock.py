"""The one lock of this library, of a file or a folder, between processes and threads; a killed process lets go. Which
process wrote something, and names that no other process gives to its files."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import uuid
import weakref
from functools import cache
from pathlib import Path
from typing import Self, TypeVar

from actstore.errors import LockedError
from actstore.storage.atomic_file import is_at, storage_errors


class FileLock:
    """Held until it is closed, left as a context, or dropped.

    refusal: what to say where another holds it; without one it is waited for, and a file system that cannot lock goes
    without. must_exist: else a file is made where nothing is.
    """

    def __init__(self, path: Path, refusal: str | None = None, must_exist: bool = False) -> None:
        with storage_errors(path):
            self._take(path, refusal, must_exist)
            while not is_at(self.descriptor, path):  # what was locked was renamed or removed meanwhile
                self.close()
                self._take(path, refusal, must_exist)

    def _take(self, path: Path, refusal: str | None, must_exist: bool) -> None:
        if must_exist or path.is_dir():
            self.descriptor = os.open(path, os.O_RDONLY)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | (0 if refusal is None else fcntl.LOCK_NB))
        except BlockingIOError:
            self.close()
            raise LockedError(refusal) from None
        except OSError:
            if refusal is not None:
                self.close()
                raise

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def own_mark() -> str:
    """Machine, process number, and when the process began, as numbers are given out again; "" where systems tell none
    of it."""
    began = _began("self")
    return f"{machine}:{os.getpid()}:{began}" if (machine := _machine()) and began else ""


def is_gone(mark: str) -> bool:
    """Whether a process of this machine has ended. Of one elsewhere nothing is known: no."""
    machine, _, process = mark.partition(":")
    number, _, began = process.partition(":")
    return bool(machine) and machine == _machine() and number.isdecimal() and _began(number) != began


@cache
def _machine() -> str:
    """Of one start of a machine and one container on it, as process numbers are; a hash, since buckets are shared."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{started} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:16]
    except OSError:
        return ""


def _began(process: str) -> str:
    """Clock ticks after the machine's start; "" where there is no such process."""
    try:
        facts = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    state, *others = facts.rpartition(")")[2].split()  # a name in parentheses may hold anything
    return "" if state in "ZX" else others[18]  # a zombie runs no more


AnyPath = TypeVar("AnyPath", bound=Path)
_PATTERN = r"\.{name}\.(?P<machine>[^/]*)\.(?P<process>[0-9]+)\.[0-9a-f]{{8}}"


def own_name(path: AnyPath) -> AnyPath:
    """Beside `path`, hidden: a new name with this machine's, this process's and a random part."""
    return path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}")


def abandoned_names(path: AnyPath) -> list[AnyPath]:
    """What processes of this machine that are gone have left of `own_name(path)`."""
    pattern = re.compile(_PATTERN.format(name=re.escape(path.name)))
    found = ((entry, pattern.fullmatch(entry.name)) for entry in path.parent.glob(f".{glob_text(path.name)}.*"))
    return [
        entry
        for entry, match in found
        if match is not None and match["machine"] == platform.node() and not _is_running(int(match["process"]))
    ]


def glob_text(text: str) -> str:
    """A text as a pattern that matches nothing else."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""Who writes: which process wrote something; and logs of one writer, which nobody else appends to as long as they are
open."""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from actstore.errors import LockedError
from actstore.storage.atomic_file import FileLock, storage_errors, write_all

if TYPE_CHECKING:
    from actstore.storage.object_path import ObjectPath, Version


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


BEAT, LEASE = 4.0, 20.0  # seconds: a token is renewed, and is taken over when it was not for so long
LOOK = 0.5  # seconds between two looks at somebody else's token


class LockedFile(FileLock):
    """A log on disk. Holding it open is holding its lock: nobody else writes to the split that it belongs to."""

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
        """LockedError where somebody else has begun to write; the lock sees to it."""

    def settle(self) -> None:
        """What was appended is final; every line was flushed to disk."""

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size


class TokenedObject:
    """A log in a bucket, where nothing can be appended to or locked: it is written anew for each line, on condition
    that nobody else has done so meanwhile.

    While it is open it ends in a token of its writer, without a line break, which no reader counts. A thread renews the
    token every BEAT seconds. Who finds one looks whether it is renewed: then its writer lives, and the newcomer is
    refused. One that stays the same for LEASE seconds, or whose process is known to have ended, is taken over: a killed
    writer leaves no lock behind. Should it live after all, it is refused from then on, as the log is not as it left it.
    """

    def __init__(self, path: ObjectPath) -> None:
        self.path = path
        self._name = b"writing " + uuid.uuid4().hex.encode() + b" "
        self._mark, self._beats = own_mark().encode(), 0
        self._open, self._changing = True, threading.Lock()
        self._acquire()
        _writers[self._name] = self
        self._stopped = threading.Event()
        self._begin_beating()

    def append(self, line: bytes) -> None:
        with self._changing:
            self._replace(self._data + line)

    def truncate(self, length: int) -> None:
        with self._changing:
            if length < len(self._data):
                self._replace(self._data[:length])

    def require_own(self) -> None:
        if not self._open or not _token_of(self._read()[0]).startswith(self._name):
            raise self._taken_over()

    def settle(self) -> None:
        self._stopped.set()
        with self._changing:
            try:
                if self._open:
                    self._open = False
                    self._replace(self._data)
            finally:
                _writers.pop(self._name, None)

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        with suppress(LockedError, OSError):  # a token that stays behind does no harm
            self.settle()

    def beat(self) -> bool:
        """Renew the token; whether there is more to come."""
        with self._changing, suppress(OSError):  # of a network: the next time it may be there again
            if self._open:
                self._beats += 1
                try:
                    self._replace(self._data)
                except LockedError:  # the next call of the writer raises it
                    return False
        return self._open

    def _begin_beating(self) -> None:
        repeat(BEAT, self.beat, self._stopped, "actstore-beat")

    def _acquire(self) -> None:
        """Put our token there. LockedError where somebody lives who has."""
        seen, until = None, 0.0
        while True:
            data, self._version = self._read()
            token = _token_of(data)
            if token and may_live(token):
                if data != seen and (seen is not None or _is_ours(token)):
                    raise LockedError(
                        f"another process is writing to {self.path.parent.parent}; wait for it to end, or stop it"
                    )
                if seen is None:
                    seen, until = data, time.monotonic() + LEASE
                if time.monotonic() < until:
                    time.sleep(LOOK)
                    continue
            with suppress(LockedError):  # else somebody was faster: look again
                self._replace(data.removesuffix(token))
                return
            self._open = True

    def _replace(self, data: bytes) -> None:
        token = b"%b%d %b" % (self._name, self._beats, self._mark) if self._open else b""
        try:
            try:
                self._version = self.path.put(data + token, self._version)
            except LockedError:
                there, version = self._read()
                if not _token_of(there).startswith(self._name):
                    raise
                # our own: a beat that was thought to have failed has arrived after all
                self._version = self.path.put(data + token, version)
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


OwnedLog = LockedFile | TokenedObject
_writers: weakref.WeakValueDictionary[bytes, TokenedObject] = weakref.WeakValueDictionary()  # of this process


def may_live(token: bytes) -> bool:
    """Whether the writer of a token, `writing NAME BEATS MARK`, may still write."""
    if _is_ours(token):
        return True
    mark = token.rpartition(b" ")[2].decode(errors="replace")
    return not is_gone(mark) and mark != own_mark()  # one of this process that is not among its writers was dropped


def _is_ours(token: bytes) -> bool:
    return any(token.startswith(name) for name in list(_writers))


def _token_of(data: bytes) -> bytes:
    return data[data.rfind(b"\n") + 1 :]


def repeat(seconds: float, action: Callable[[], bool], stopped: threading.Event, name: str) -> threading.Thread:
    """Call a method now and then on a thread, as long as it answers that there may be more to do. The thread does not
    keep what the method belongs to from being dropped."""
    method = weakref.WeakMethod(action)

    def run() -> None:
        while not stopped.wait(seconds):
            alive = method()
            if alive is None or not alive():
                return
            del alive

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread

"""Child processes watched from outside: seconds, and the most memory they and their children had."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_EVERY = 0.01  # seconds between two looks; one takes 0.1 ms


@dataclass(frozen=True)
class Usage:
    """resident: bytes of the whole process tree, pages of mapped files included, which the kernel takes back when it
    needs them. own: those that only the processes themselves can give back (anonymous and shared memory)."""

    seconds: float
    resident: int
    own: int
    printed: str


def watch(*command: str | Path, cwd: Path | None = None, until: float | None = None) -> Usage:
    """Run a command to its end, or end it after `until` seconds; raises with its last words where it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        begin = time.perf_counter()
        child = subprocess.Popen([str(part) for part in command], stdout=out, stderr=err, cwd=cwd)
        resident = own = 0
        stopped = False
        while child.poll() is None:
            now = _tree(child.pid)
            resident = max(resident, _peak_of(child.pid), sum(one.get("VmRSS", 0) for one in now))
            own = max(own, sum(one.get("RssAnon", 0) + one.get("RssShmem", 0) for one in now))
            if until is not None and not stopped and time.perf_counter() - begin > until:
                child.terminate()
                stopped = True
            time.sleep(_EVERY)
        seconds = time.perf_counter() - begin
        if child.returncode and not stopped:
            raise RuntimeError(f"{' '.join(map(str, command))} failed: {_text(err)[-1500:]}")
        return Usage(seconds, resident, own, _text(out))


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _tree(pid: int) -> list[dict[str, int]]:
    """What /proc says of a process and all below it."""
    found = [_status(pid)]
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has just ended
        return found
    return found + [one for child in below for one in _tree(int(child))]


def _peak_of(pid: int) -> int:
    return _status(pid).get("VmHWM", 0)


def _status(pid: int) -> dict[str, int]:
    """Bytes by name."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)
            if name in ("VmHWM", "VmRSS", "RssAnon", "RssShmem")}  # fmt: skip


def forget(folder: Path) -> None:
    """Ask the kernel to drop the pages of all files below, which must not be mapped: the next reads go to the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

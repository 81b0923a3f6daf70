"""Memory of this machine and process, so that a benchmark leaves out what cannot fit instead of being killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from actstore.bench.measure import peak_memory

RESERVE = 1 << 30  # bytes that are left to everything else: libraries, samples that an index is fitted on
_EVERY = 0.2  # seconds between two looks
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that can be had without swapping, by this machine and by the limit of a container."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    free = _kilobytes(info, "MemAvailable") * 1024
    with suppress(OSError, ValueError):  # no such limit
        most, used = (int((_CONTROL_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, most - used)
    return free


@dataclass
class Peak:
    """total: resident at most, files that were mapped included. own: what no file stands behind, at most."""

    total: int = 0
    own: int = 0


@contextmanager
def watch_memory() -> Iterator[Peak]:
    """The peak of this process while the block runs; both are filled in when it ends."""
    peak, stopped = Peak(), threading.Event()

    def look() -> None:
        while True:
            peak.own = max(peak.own, own_memory())
            if stopped.wait(_EVERY):
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        stopped.set()
        watcher.join()
        peak.total = peak_memory()


def own_memory() -> int:
    """Bytes of this process that no file stands behind: what only its end gives back."""
    status = Path("/proc/self/status")
    return _kilobytes(status, "RssAnon") * 1024 if status.exists() else peak_memory()


def _kilobytes(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])

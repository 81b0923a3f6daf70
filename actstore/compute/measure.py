"""Timing: how long an action takes, the most memory of this process, and a figure beside its peer's."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """One figure beside its peer's; ratio > 1 means better than the peer."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def seconds(action: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def peak_memory() -> int:
    """The most bytes this process has had resident, mapped files included."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would also count what the parent had when it forked
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes

"""Timing that survives a noisy machine: contenders take turns, and ratios come from the same run."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
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


def alternate(
    actions: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1, settle: bool = False
) -> dict[str, float]:
    """Median seconds of each action, run one after the other in every round.

    settle: run each once more just before it is timed, so that none pays for what another left in the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(warm_up + rounds):
        for name, action in actions.items():
            if settle:
                action()
            taken = seconds(action)
            if turn >= warm_up:
                times[name].append(taken)
    return {name: statistics.median(taken) for name, taken in times.items()}


def peak_memory() -> int:
    """The most bytes this process has had resident, mapped files included."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would also count what the parent had when it forked
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes

"""This process: Ctrl-C and SIGTERM, noted while a training runs, so that it can stop between two steps, and both an
interrupt while rows are written; how long an action takes, and the most memory so far."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@dataclass
class Interruption:
    is_asked: bool = False


@contextmanager
def noted_signals() -> Iterator[Interruption]:
    """The first signal is noted, a second one acts at once."""
    interruption = Interruption()

    def note() -> None:
        interruption.is_asked = True

    with _at_first_signal(_DEFAULTS, note):
        yield interruption


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that what is under way can be kept; a second one acts at
    once."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with _at_first_signal((signal.SIGTERM,), interrupt):
        yield


@contextmanager
def _at_first_signal(numbers: Iterable[signal.Signals], act: Callable[[], None]) -> Iterator[None]:
    """Whoever handles or ignores signals goes on to do so, and on another thread than the main one Python allows no
    handlers: there nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    handled = [number for number in numbers if is_main and signal.getsignal(number) is _DEFAULTS[number]]

    def restore() -> None:
        for number in handled:
            signal.signal(number, _DEFAULTS[number])

    def handle(number: int, frame: Any) -> None:
        restore()
        act()

    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


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

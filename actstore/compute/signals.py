"""Ctrl-C and SIGTERM: noted while a training runs, so that it can stop between two steps; both an interrupt while
rows are written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

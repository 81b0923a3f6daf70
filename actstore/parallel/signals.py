"""Ctrl-C and SIGTERM: noted while a training runs, so that it can stop between two steps; both an interrupt while
rows are written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@dataclass
class Interruption:
    is_asked: bool = False


@contextmanager
def noted_signals() -> Iterator[Interruption]:
    """The first signal is noted, a second one acts at once. Whoever handles or ignores signals goes on to do so, and
    on another thread than the main one Python allows no handlers: there nothing is noted."""
    interruption = Interruption()
    noted = [number for number, usual in _DEFAULTS.items() if signal.getsignal(number) is usual]
    if threading.current_thread() is not threading.main_thread():
        noted = []

    def restore() -> None:
        for number in noted:
            signal.signal(number, _DEFAULTS[number])

    def note(number: int, frame: Any) -> None:
        interruption.is_asked = True
        restore()

    for number in noted:
        signal.signal(number, note)
    try:
        yield interruption
    finally:
        restore()


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that what is under way can be kept; a second one acts at
    once. As above, whoever handles or ignores it goes on to do so."""
    number = signal.SIGTERM
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(number) is not _DEFAULTS[number]:
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(number, _DEFAULTS[signal.SIGTERM])
        raise KeyboardInterrupt

    signal.signal(number, interrupt)
    try:
        yield
    finally:
        signal.signal(number, _DEFAULTS[number])

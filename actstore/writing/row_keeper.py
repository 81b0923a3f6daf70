"""Rows of an open chunk made durable now and then, on a thread of its own.

A chunk of 8,192 photos takes minutes: without this a kill would lose them all. The thread works while the source
does, also when that is slow to give its next block.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

SECONDS = 16.0  # a row waits at most so long; with the time that its write takes, 20 s


class Keeper:
    """Calls `keep` while the oldest row that is not durable has waited for three quarters of SECONDS.

    It holds no reference to what `keep` is bound to: a writer that is dropped lets go of its split.
    """

    def __init__(self, keep: Callable[[], None]) -> None:
        self._keep = weakref.WeakMethod(keep)
        self.since: float | None = None  # when the oldest row came that is not durable
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def rows_came(self) -> None:
        """Some rows are not durable yet. The first call starts the thread."""
        if self.since is None:
            self.since = time.monotonic()
        if self._thread is None:
            arguments = (weakref.ref(self), self._stopped, SECONDS / 4)
            self._thread = threading.Thread(target=_run, args=arguments, name="actstore-keep", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Returns when the thread does nothing any more."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def keep_if_due(self) -> bool:
        """Whether there may be more to do."""
        keep = self._keep()
        if keep is None:
            return False
        if self.since is not None and time.monotonic() - self.since >= SECONDS * 3 / 4:
            try:
                keep()
            except BaseException as error:  # noqa: BLE001 - the next call of the writer raises it
                self.failure = error
                return False
        return True


def _run(keeper: weakref.ref[Keeper], stopped: threading.Event, seconds: float) -> None:
    while not stopped.wait(seconds):
        alive = keeper()
        if alive is None or not alive.keep_if_due():
            return
        del alive

"""Progress bars on stderr: live on a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Bar(Protocol):
    def update(self, n: float | None = 1) -> Any: ...
    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None: ...


@contextmanager
def progress(what: str, total: int, unit: str = "rows") -> Iterator[Bar]:
    """A bar with rate and time left; `update` may be called from several threads."""
    from tqdm import tqdm

    live = sys.stderr.isatty()
    bar = tqdm(
        total=total,
        desc=what,
        unit=f" {unit}",
        unit_scale=True,
        mininterval=0.2 if live else 20,
        file=sys.stderr,
        leave=live,
        dynamic_ncols=live,
    )
    with _Locked(bar) as locked:
        yield locked


class _Locked:
    def __init__(self, bar: Any) -> None:
        self._bar, self._lock = bar, threading.Lock()

    def update(self, n: float | None = 1) -> None:
        with self._lock:
            self._bar.update(n)

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        self._bar.set_postfix_str(s, refresh)

    def __enter__(self) -> _Locked:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


class SplitBars:
    """One bar after the other for an import that fills several splits."""

    def __init__(self, what: str, unit: str = "rows") -> None:
        self._what, self._unit, self._split, self._done = what, unit, "", 0
        self._context: Any = None
        self._bar: Bar | None = None

    def __call__(self, split: str, done: int, total: int) -> None:
        if split != self._split:
            self.close()
            self._context = progress(f"{self._what} {split}", total, self._unit)
            self._bar, self._split, self._done = self._context.__enter__(), split, 0
        assert self._bar is not None
        self._bar.update(done - self._done)
        self._done = done

    def close(self) -> None:
        if self._context is not None:
            self._context.__exit__(None, None, None)
            self._context = None

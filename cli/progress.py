"""Progress bars on stderr: live on a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

LINE_SECONDS = 20.0


class Bar(Protocol):
    def update(self, n: float | None = 1) -> Any: ...
    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None: ...


@contextmanager
def progress(what: str, total: int, unit: str = "rows", before: int = 0) -> Iterator[Bar]:
    """A bar with rate and time left; `update` may be called from several threads. before: done by an earlier run."""
    if not sys.stderr.isatty():
        yield _Lines(what, total, unit, before)
        return
    from tqdm import tqdm

    shown = {"unit": f" {unit}", "unit_scale": True, "mininterval": 0.2, "dynamic_ncols": True}
    with tqdm(total=total, desc=what, initial=before, **shown) as bar:
        yield _Locked(bar)


class _Lines:
    """A whole line now and then, for a log: none at all where the work is soon done."""

    def __init__(self, what: str, total: int, unit: str, before: int = 0) -> None:
        self._what, self._total, self._unit, self._lock = what, total, unit, threading.Lock()
        self._before, self._done, self._note, self._began = before, float(before), "", time.monotonic()
        self._next = self._began + LINE_SECONDS

    def update(self, n: float | None = 1) -> None:
        with self._lock:
            self._done += n or 0
            if (now := time.monotonic()) >= self._next:
                self._next = now + LINE_SECONDS
                rate = (self._done - self._before) / (now - self._began)
                of = f" of {self._total:,}" if self._total else ""
                line = f"{self._what}: {self._done:,.0f}{of} {self._unit}, {rate:,.3g}/s"
                if self._total and rate:
                    line += f", {time_span((self._total - self._done) / rate)} left"
                print(f"{line}{self._note}", file=sys.stderr)

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        self._note = f", {s}" if s else ""


def time_span(seconds: float) -> str:
    """45 s, 12 min or 3 h 05 min"""
    if seconds < 100:
        return f"{max(0, seconds):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60:02} min"


class _Locked:
    def __init__(self, bar: Any) -> None:
        self._bar, self._lock = bar, threading.Lock()

    def update(self, n: float | None = 1) -> None:
        with self._lock:
            self._bar.update(n)

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        self._bar.set_postfix_str(s, refresh)


class SplitBars:
    """One bar after the other for work on several splits; figures: the newest of each name are shown beside it."""

    def __init__(self, what: str, unit: str = "rows") -> None:
        self._what, self._unit, self._split, self._done = what, unit, "", 0
        self._figures: dict[str, float] = {}
        self._open = ExitStack()
        self._bar: Bar = _Lines(what, 0, unit)

    def __call__(self, split: str, done: int, total: int, figures: Mapping[str, float] | None = None) -> None:
        if split != self._split:
            self.close()
            # what is done at the first call may be of a run before: it says nothing of the speed
            self._bar = self._open.enter_context(progress(f"{self._what} {split}", total, self._unit, done))
            self._split, self._done = split, done
        if figures:
            self._figures |= figures
            text = ", ".join(f"{key} {value:.3g}" for key, value in self._figures.items())
            self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(done - self._done)
        self._done = done

    def close(self) -> None:
        self._open.close()
        self._split = ""

    def __enter__(self) -> SplitBars:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TrainingBars(ExitStack):
    """What a training tells: of images that it decodes, then of its steps with their figures.

    began: called once, when the first steps are done: what would have been refused is refused by then.
    """

    def __init__(self, name: str, began: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._name, self._began = name, began
        self._decoding = self.enter_context(SplitBars("decode", "images"))
        self._training = self.enter_context(SplitBars("train", "steps"))

    def decoded(self, done: int, total: int) -> None:
        self._decoding("images", done, total)
        if done == total:
            self._decoding.close()

    def report(self, done: int, total: int, figures: Mapping[str, float]) -> None:
        began, self._began = self._began, None
        if began is not None:
            began()
        self._training(self._name, done, total, figures)

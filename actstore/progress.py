"""The one progress bar of the library: in a terminal, in a notebook, or as a line now and then in a log."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any

from actstore.errors import InvalidInputError

__all__ = [
    "Bar", "Progress", "SplitBars", "SplitProgress", "TrainingBars", "bar", "human_bytes", "is_main_process", "note",
    "time_span",
]  # fmt: skip
LINE_SECONDS = 20.0
Progress = Callable[[int], None]  # is told how many more are done
SplitProgress = Callable[[str, int, int], None]  # is told the split, how many of it are done, and how many it has


class Bar:
    """What work reports to, from several threads; without a bar of tqdm nothing is shown."""

    def __init__(self, shown: Any = None) -> None:
        self._shown, self._lock = shown, threading.Lock()

    def update(self, n: float | None = 1) -> None:
        with self._lock:
            if self._shown is not None:
                self._shown.update(n)

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        if self._shown is not None:
            self._shown.set_postfix_str(s, refresh)


@contextmanager
def bar(what: str, total: int | None, unit: str, shown: bool | None = None, before: int = 0) -> Iterator[Bar]:
    """A bar with rate and time left.

    shown: None is a bar on a terminal or in a notebook and nothing elsewhere, True is a line every LINE_SECONDS
    elsewhere, False is nothing at all. before: done by an earlier run.
    """
    if shown not in (None, True, False):
        raise InvalidInputError(f"progress must be None, True or False, got {shown!r}")
    has_screen = sys.stderr.isatty() or _is_notebook()
    if shown is False or (shown is None and not has_screen):
        yield Bar()
    elif not has_screen:
        yield _Lines(what, total, unit, before)
    else:
        # the bar of a notebook needs ipywidgets, and warns without
        if _is_notebook() and find_spec("ipywidgets") is not None:
            from tqdm.notebook import tqdm
        else:
            from tqdm import tqdm
        looks = {"unit": f" {unit}", "unit_scale": True, "mininterval": 0.2, "dynamic_ncols": True}
        with tqdm(total=total, desc=what, initial=before, **looks) as tqdm_bar:
            yield Bar(tqdm_bar)


def _is_notebook() -> bool:
    """Whether a Jupyter kernel runs this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Lines(Bar):
    """A whole line now and then, for a log: none at all where the work is soon done."""

    def __init__(self, what: str, total: int | None, unit: str, before: int) -> None:
        super().__init__()
        self._what, self._total, self._unit = what, total, unit
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


def is_main_process() -> bool:
    """Whether this process is the one that speaks, of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def note(text: str, shown: bool | None = None) -> None:
    """A sentence about what was chosen, on stderr, unless progress is not to be shown; once under torchrun."""
    if shown is not False and is_main_process():
        print(text, file=sys.stderr)


class SplitBars:
    """One bar after the other for work on several splits; figures: the newest of each name are shown beside it."""

    def __init__(self, what: str, unit: str = "rows", shown: bool | None = None) -> None:
        self._what, self._unit, self._shown, self._split, self._done = what, unit, shown, "", 0
        self._figures: dict[str, float] = {}
        self._open = ExitStack()
        self._bar = Bar()

    def __call__(self, split: str, done: int, total: int, figures: Mapping[str, float] | None = None) -> None:
        if split != self._split:
            self.close()
            # what is done at the first call may be of a run before: it says nothing of the speed
            opened = bar(f"{self._what} {split}", total, self._unit, self._shown, done)
            self._bar, self._split, self._done = self._open.enter_context(opened), split, done
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
    """What a training tells: of images that it decodes, then of its steps with their figures."""

    def __init__(self, name: str, shown: bool | None = None) -> None:
        super().__init__()
        self._name = name
        self._decoding = self.enter_context(SplitBars("decode", "images", shown))
        self._training = self.enter_context(SplitBars("train", "steps", shown))

    def decoded(self, done: int, total: int) -> None:
        self._decoding("images", done, total)
        if done == total:
            self._decoding.close()

    def report(self, done: int, total: int, figures: Mapping[str, float]) -> None:
        self._training(self._name, done, total, figures)


def human_bytes(count: float) -> str:
    """512 B, 1.5 MB, …"""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

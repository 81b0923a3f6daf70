"""Progress bars on stderr: live on a terminal, a line now and then in a log file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack

from actstore.progress import Bar, bar
from actstore.progress import SplitBars as LibraryBars
from actstore.progress import time_span as time_span


def progress(what: str, total: int, unit: str = "rows", before: int = 0) -> AbstractContextManager[Bar]:
    """A bar with rate and time left; `update` may be called from several threads. before: done by an earlier run."""
    return bar(what, total, unit, True, before)


class SplitBars(LibraryBars):
    """One bar after the other for work on several splits."""

    def __init__(self, what: str, unit: str = "rows") -> None:
        super().__init__(what, unit, True)


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

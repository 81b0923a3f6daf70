"""Progress bars on stderr: live on a terminal, a line now and then in a log file."""

from __future__ import annotations

from contextlib import AbstractContextManager

from actstore.progress import Bar, bar
from actstore.progress import SplitBars as LibraryBars


def progress(what: str, total: int, unit: str = "rows", before: int = 0) -> AbstractContextManager[Bar]:
    """A bar with rate and time left; `update` may be called from several threads. before: done by an earlier run."""
    return bar(what, total, unit, True, before)


class SplitBars(LibraryBars):
    """One bar after the other for work on several splits."""

    def __init__(self, what: str, unit: str = "rows") -> None:
        super().__init__(what, unit, True)

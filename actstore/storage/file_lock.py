"""The one lock of this library, of a file or a folder, between processes and threads; a killed process lets go."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path
from typing import Self

from actstore.errors import LockedError
from actstore.storage.atomic_file import is_at, storage_errors


class FileLock:
    """Held until it is closed, left as a context, or dropped.

    refusal: what to say where another holds it; without one it is waited for, and a file system that cannot lock goes
    without. must_exist: else a file is made where nothing is.
    """

    def __init__(self, path: Path, refusal: str | None = None, must_exist: bool = False) -> None:
        with storage_errors(path):
            self._take(path, refusal, must_exist)
            while not is_at(self.descriptor, path):  # what was locked was renamed or removed meanwhile
                self.close()
                self._take(path, refusal, must_exist)

    def _take(self, path: Path, refusal: str | None, must_exist: bool) -> None:
        if must_exist or path.is_dir():
            self.descriptor = os.open(path, os.O_RDONLY)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | (0 if refusal is None else fcntl.LOCK_NB))
        except BlockingIOError:
            self.close()
            raise LockedError(refusal) from None
        except OSError:
            if refusal is not None:
                self.close()
                raise

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

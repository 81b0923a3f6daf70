"""Files and folders of this machine as a `Place`; two of them change places in one step, where the system can do
that."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from actstore.errors import StorageError, reason_of
from actstore.spec import is_stray
from actstore.storage.atomic_file import AtomicFile, Data, FileLock, storage_errors, write_atomic
from actstore.storage.locks import LockedFile, abandoned_names, own_name

if TYPE_CHECKING:
    from actstore.storage.object_path import CacheSpec, EnsureOwner, Version


_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_UNABLE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def exchange(first: Path, second: Path) -> bool:
    """Whether they have changed places; False where this file system cannot do it, and nothing has changed."""
    rename = _rename()
    if rename is None or rename(os.fsencode(first), os.fsencode(second)) == 0:
        return rename is not None
    code = ctypes.get_errno()
    if code in _UNABLE:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))


@cache
def _rename() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
        return lambda first, second: libc.renameat2(_HERE, first, _HERE, second, _EXCHANGE)
    if hasattr(libc, "renamex_np"):
        libc.renamex_np.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
        return lambda first, second: libc.renamex_np(first, second, _EXCHANGE)
    return None


T = TypeVar("T")
U = TypeVar("U")


class FolderPath(PosixPath):
    """A path like any other, with what `Place` asks for. No method is called `read` or `write`: numpy would take a path
    that has one for an open file."""

    cache: CacheSpec | None = None
    object_location = None

    @property
    def local_path(self) -> Self:
        return self

    def with_cache(self, cache: CacheSpec | None) -> Self:
        return self  # it is here already

    def side_folder(self, what: str) -> Path:
        return self.with_name(f"{self.name}.{what}")

    def children(self) -> list[Self]:
        return sorted(entry for entry in self.iterdir() if not is_stray(entry.name) and entry.is_dir())

    def has_entries(self, besides: str = "") -> bool:
        try:
            return any(not is_stray(name) and name != besides for name in (entry.name for entry in self.iterdir()))
        except FileNotFoundError:
            return False
        except NotADirectoryError:
            return self.exists()

    def size(self) -> int:
        return self.stat().st_size

    def tree_size(self) -> int:
        return sum(file.stat().st_size for file in self.rglob("*") if file.is_file())

    def read_bytes(self) -> bytes:
        return self._read().tobytes()

    def read_version(self) -> tuple[memoryview, None]:
        return self._read().data, None

    def _read(self, start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """The bytes [start, stop) as far as there are any. What the disk refuses is an error, which np.fromfile takes
        for the end of the file."""
        try:
            with self.open("rb", buffering=0) as file:
                out = np.empty((os.fstat(file.fileno()).st_size if stop is None else stop) - start, np.uint8)
                file.seek(start)
                done = 0
                while done < len(out) and (count := file.readinto(out.data[done:])):
                    done += count
                return out[:done]
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise StorageError(f"cannot read {self}: {reason_of(error)}") from error

    def read_span(self, start: int, stop: int) -> NDArray[np.uint8]:
        data = self._read(start, stop)
        if len(data) != stop - start:
            raise FileNotFoundError(f"{self} ends before byte {stop}")
        return data

    def read_ranges(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        with self.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return [mapped[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def map_parallel(self, read: Callable[[T], U], parts: Sequence[T]) -> Iterator[U]:
        return map(read, parts)

    def reading_errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin_write(self, *parts: Data, ensure_owner: EnsureOwner | None = None) -> AtomicFile:
        return AtomicFile(self, *parts)  # the log's lock keeps others out: there is nothing to ask

    def put(self, data: Data, version: Version | None = None) -> None:
        write_atomic(self, data)

    def contents(self) -> list[tuple[str, bool]]:
        found = []
        for folder, folders, names in os.walk(self):
            above = os.path.relpath(folder, self) + "/" if folder != str(self) else ""
            found += [(above + name, not (Path(folder) / name).is_symlink()) for name in folders]
            found += [(above + name, False) for name in names]
        return found

    def remove_below(self, entries: Sequence[tuple[str, bool]]) -> None:
        for name, is_folder in entries:
            if is_folder:
                with suppress(OSError):  # something of others is in it, or it was never there
                    (self / name).rmdir()
            else:
                (self / name).unlink(missing_ok=True)

    def remove_tree(self) -> None:
        """All that is in it, too."""
        with storage_errors(self):
            shutil.rmtree(self, ignore_errors=True)

    @contextmanager
    def replacing(self) -> Iterator[Self]:
        fresh = own_name(self)
        for left in abandoned_names(self):
            left.remove_tree()
        try:
            yield fresh
            if not self.exists():
                fresh.rename(self)
            elif exchange(fresh, self):
                fresh.hand_over(self)
            else:
                old = own_name(self)
                self.rename(old)
                fresh.rename(self)
                old.hand_over(self)
        finally:
            fresh.remove_tree()

    def hand_over(self, successor: Path) -> None:
        """Remove a folder; what lies in it and not in the one that has taken its place goes there."""
        for entry in self.iterdir():
            if not (successor / entry.name).exists():
                entry.rename(successor / entry.name)
        self.remove_tree()

    def changing(self) -> FileLock:
        return FileLock(self, must_exist=True)

    def open_log(self) -> LockedFile:
        return LockedFile(self)

    def has_log_writer(self) -> bool:
        return False

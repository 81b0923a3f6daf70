"""Where a store lies: a `Place` is a file or folder of this machine or of a bucket, by name. The rest of the library
calls what both kinds offer, and asks for neither. A file is there whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path, PosixPath
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from actstore.errors import StorageError, reason_of
from actstore.spec import is_stray
from actstore.storage.atomic_file import AtomicFile, Data, FileLock, chunk_parts, crc32c, write_atomic
from actstore.storage.bucket_client import Upload
from actstore.storage.locks import LockedFile
from actstore.storage.object_path import CacheSpec, EnsureOwner, ObjectPath, Version

T = TypeVar("T")
U = TypeVar("U")


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


class FolderPath(PosixPath):
    """A path like any other, with what is asked of a place. No method is called `read` or `write`: numpy would take a
    path that has one for an open file."""

    cache: CacheSpec | None = None

    @property
    def local_path(self) -> Self:
        """Where it lies on this machine, so that files can be mapped and folders renamed."""
        return self

    def with_cache(self, cache: CacheSpec | None) -> Self:
        return self  # it is here already

    def side_folder(self, what: str) -> Path:
        """A folder on this machine for what belongs to a store but must be a file."""
        return self.with_name(f"{self.name}.{what}")

    def children(self) -> list[Self]:
        """The folders directly in a folder, by name; stray ones are passed over, and so are files."""
        return sorted(entry for entry in self.iterdir() if not is_stray(entry.name) and entry.is_dir())

    def has_entries(self, besides: str = "") -> bool:
        """Whether anything lies at or below a place, stray files and one of that name aside."""
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
        """A whole file, and where files have versions, which one this is."""
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
        """The bytes [start, stop) of a file, which must reach that far."""
        data = self._read(start, stop)
        if len(data) != stop - start:
            raise FileNotFoundError(f"{self} ends before byte {stop}")
        return data

    def read_ranges(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        """The bytes of each range of a file."""
        with self.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return [mapped[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def map_parallel(self, read: Callable[[T], U], parts: Sequence[T]) -> Iterator[U]:
        """`read` of every part in order, several at a time where each waits for a network."""
        return map(read, parts)

    def begin_write(self, *parts: Data, ensure_owner: EnsureOwner | None = None) -> AtomicFile:
        """Start to write a whole file. ensure_owner: asked before an object of others may be replaced; on a disk the
        log's lock keeps others out."""
        return AtomicFile(self, *parts)

    def put(self, data: Data, version: Version | None = None) -> None:
        """Write a file. version: where files have versions the one it must have now, {} for none at all; LockedError
        where somebody else has written something else meanwhile."""
        write_atomic(self, data)

    def contents(self) -> list[tuple[str, bool]]:
        """What lies below a folder, by its path from there, and whether it is a folder; a link is none."""
        found = []
        for folder, folders, names in os.walk(self):
            above = os.path.relpath(folder, self) + "/" if folder != str(self) else ""
            found += [(above + name, not (Path(folder) / name).is_symlink()) for name in folders]
            found += [(above + name, False) for name in names]
        return found

    def remove_below(self, entries: Sequence[tuple[str, bool]]) -> None:
        """Remove some of the contents in this order, "" being the folder itself; of folders only those that are empty.
        What is not there any more is passed over."""
        for name, is_folder in entries:
            if is_folder:
                with suppress(OSError):  # something of others is in it, or it was never there
                    (self / name).rmdir()
            else:
                (self / name).unlink(missing_ok=True)

    def changing(self) -> FileLock:
        """Held while a folder's metadata is read, changed and written."""
        return FileLock(self, must_exist=True)

    def open_log(self) -> LockedFile:
        """A file to append to, which nobody else appends to as long as it is open."""
        return LockedFile(self)

    def has_log_writer(self) -> bool:
        """Whether the end of a log says that somebody appends to it, or was killed; on a disk its lock tells that."""
        return False


Place = FolderPath | ObjectPath
Storing = AtomicFile | Upload  # a file on its way: `finish` makes it durable under its name and returns its size
AnyPlace = str | Path | Place  # as users give one


def parse_place(path: AnyPlace, cache: CacheSpec | None = None) -> Place:
    """A path, or the URL of a place in a bucket. A cache serves the latter alone."""
    place: Place
    if isinstance(path, str) and "://" in path:
        place = ObjectPath.parse(path)
    elif isinstance(path, str | Path):
        folder = FolderPath(path)
        # what is kept beside a store is named after it, and "." and ".." are no names
        place = folder if folder.name not in ("", "..") else folder.resolve()
    else:
        place = path
    return place if cache is None else place.with_cache(cache)


def write_file(place: Place, *parts: Data, ensure_owner: EnsureOwner | None = None) -> int:
    """Write a file so that it is there whole, durably, or not at all. Returns the bytes written."""
    return place.begin_write(*parts, ensure_owner=ensure_owner).finish()


def write_chunk(place: Place, values: Data, ensure_owner: EnsureOwner | None = None) -> int:
    """Write a raw chunk file durably; returns its size."""
    return write_file(place, *chunk_parts(values, crc32c(values)), ensure_owner=ensure_owner)


def read_file(place: Place) -> NDArray[np.uint8]:
    """The bytes of a whole file."""
    return np.frombuffer(place.read_version()[0], np.uint8)


def read_files(places: Sequence[Place]) -> Iterator[NDArray[np.uint8] | None]:
    """The bytes of several files in order, None for one that is not there; objects are fetched side by side."""

    def read(place: Place) -> NDArray[np.uint8] | None:
        try:
            return read_file(place)
        except FileNotFoundError:
            return None

    yield from places[0].map_parallel(read, places) if places else ()


def stores_in(folder: Path) -> list[FolderPath]:
    """The *.zarr of a folder, by name; macOS leaves a `._x.zarr` beside an x.zarr that it copies."""
    return sorted(path for path in FolderPath(folder).glob("*.zarr") if not is_stray(path.name))

"""Where a store lies. `Place` is all that the rest of the library knows of storage; the kinds of it are `FolderPath`
and `ObjectPath` (a bucket, whose chunks may be kept on this machine's disk)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from actstore.spec import is_stray
from actstore.storage.atomic_file import Data, chunk_parts, crc32c
from actstore.storage.folder_path import FolderPath
from actstore.storage.locks import OwnedLog
from actstore.storage.object_path import CacheSpec, EnsureOwner, ObjectPath, Version

T = TypeVar("T")
U = TypeVar("U")


class Storing(Protocol):
    """A file on its way: `finish` makes it durable under its name and returns its size."""

    def finish(self) -> int: ...
    def abandon(self) -> None: ...


class Place(Protocol):
    """A file or folder of a store, by name. A file is there whole or not at all."""

    @property
    def name(self) -> str: ...
    @property
    def parent(self) -> Self: ...
    def __truediv__(self, part: str, /) -> Self: ...
    def absolute(self) -> Self:
        """The same place for a process in another working folder."""

    @property
    def local_path(self) -> FolderPath | None:
        """Where it lies on this machine, so that files can be mapped and folders renamed."""

    @property
    def cache(self) -> CacheSpec | None:
        """Where chunks that were fetched are kept on this machine."""

    def with_cache(self, cache: CacheSpec | None) -> Self:
        """None: for writers, who need what is there now."""

    def side_folder(self, what: str) -> Path:
        """A folder on this machine for what belongs to a store but must be a file."""

    def exists(self) -> bool:
        """Whether there is a file of this very name."""

    def iterdir(self) -> Iterable[Self]: ...
    def children(self) -> list[Self]:
        """The folders directly in a folder, by name; stray ones are passed over, and so are files."""

    def has_entries(self, besides: str = "") -> bool:
        """Whether anything lies at or below a place, stray files and one of that name aside."""

    def size(self) -> int: ...
    def tree_size(self) -> int:
        """Bytes of all files below a folder."""

    def read_bytes(self) -> bytes: ...
    def read_version(self) -> tuple[memoryview, Version | None]:
        """A whole file, and where files have versions, which one this is."""

    def read_span(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The bytes [start, stop) of a file, which must reach that far."""

    def read_ranges(self, starts: Sequence[int], stops: Sequence[int]) -> Sequence[Any]:
        """The bytes of each range of a file, as buffers."""

    def map_parallel(self, read: Callable[[T], U], parts: Sequence[T]) -> Iterator[U]:
        """`read` of every part in order, several at a time where each waits for a network."""

    def reading_errors(self) -> AbstractContextManager[None]:
        """Around a read by another library: what a bucket says, in one line. A disk's errors stay as they are."""

    @property
    def object_location(self) -> tuple[Any, str] | None:
        """An obstore client and a key, for a library that reads objects by itself; None for files."""

    def begin_write(self, *parts: Data, ensure_owner: EnsureOwner | None = None) -> Storing:
        """Start to write a whole file. ensure_owner: asked before an object of others may be replaced."""

    def put(self, data: Data, version: Version | None = None) -> Version | None:
        """Write a file. version: where files have versions the one it must have now, {} for none at all; LockedError
        where somebody else has written something else meanwhile."""

    def unlink(self) -> None: ...
    def contents(self) -> list[tuple[str, bool]]:
        """What lies below a folder, by its path from there, and whether it is a folder; a link is none."""

    def remove_below(self, entries: Sequence[tuple[str, bool]]) -> None:
        """Remove some of the contents in this order, "" being the folder itself; of folders only those that are empty.
        What is not there any more is passed over."""

    def replacing(self) -> AbstractContextManager[Self]:
        """Where to write a folder anew that takes this one's place in the end; nothing is left of it on an error."""

    def changing(self) -> AbstractContextManager[object]:
        """While a folder's metadata is read, changed and written; keeps other processes out where that is needed."""

    def open_log(self) -> OwnedLog:
        """A file to append to, which nobody else appends to as long as it is open."""

    def has_log_writer(self) -> bool:
        """Whether the end of a log says that somebody appends to it, or was killed. Where locks tell that, no."""


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

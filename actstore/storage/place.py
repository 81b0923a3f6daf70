"""Where a store lies: a folder, or a bucket of object storage. What differs between the two is said here."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actstore.storage.atomic_file import AtomicFile, Data, storage_errors
from actstore.storage.bucket_client import object_errors
from actstore.storage.chunk_cache import CacheSpec
from actstore.storage.crc import chunk_parts, crc32c
from actstore.storage.object_path import Guard, ObjectPath, Upload
from actstore.storage.stray_files import is_stray

Place = Path | ObjectPath
_FILES_AT_ONCE = 8


class Storing(Protocol):
    """A file on its way: `finish` makes it durable under its name and returns its size."""

    def finish(self) -> int: ...
    def abandon(self) -> None: ...


def parse_place(given: str | Place, cache: CacheSpec | None = None) -> Place:
    """A path, or the URL of a place in a bucket. A cache serves the latter alone."""
    if isinstance(given, ObjectPath):
        return given if cache is None else replace(given, cache=cache)
    return ObjectPath.parse(given, cache) if isinstance(given, str) and "://" in given else Path(given)


def uncached(place: Place) -> Place:
    """For writers, who need what is in the bucket now."""
    return place if isinstance(place, Path) else replace(place, cache=None)


def begin_write(place: Place, *parts: Data, guard: Guard | None = None) -> Storing:
    """Start to write a whole file; see AtomicFile and Upload, which asks the guard before it replaces an object."""
    return AtomicFile(place, *parts) if isinstance(place, Path) else Upload(place, *parts, guard=guard)


def write_file(place: Place, *parts: Data, guard: Guard | None = None) -> int:
    """Write a file so that it is there whole, durably, or not at all. Returns the bytes written."""
    return begin_write(place, *parts, guard=guard).finish()


def write_chunk(place: Place, values: Data, guard: Guard | None = None) -> int:
    """Write a raw chunk file durably; returns its size."""
    return write_file(place, *chunk_parts(values, crc32c(values)), guard=guard)


def size_of(place: Place) -> int:
    return place.stat().st_size if isinstance(place, Path) else place.size()


def tree_size(place: Place) -> int:
    """Bytes of all files below a folder."""
    if isinstance(place, ObjectPath):
        return place.tree_size()
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


def read_file(place: Place) -> NDArray[np.uint8]:
    """The bytes of a whole file."""
    if isinstance(place, Path):
        return np.fromfile(place, np.uint8)
    return np.frombuffer(place.read()[0], np.uint8)


def read_files(places: Sequence[Place]) -> Iterator[NDArray[np.uint8] | None]:
    """The bytes of several files in order, None for one that is not there; objects are fetched side by side."""

    def read(place: Place) -> NDArray[np.uint8] | None:
        try:
            return read_file(place)
        except FileNotFoundError:
            return None

    if all(isinstance(place, Path) for place in places):
        yield from map(read, places)
    else:
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            yield from pool.map(read, places)


def reading_errors(place: Place) -> AbstractContextManager[None]:
    """Around a read by another library: what a bucket says, in one line. A disk's errors stay as they are."""
    return nullcontext() if isinstance(place, Path) else object_errors(place)


def read_span(place: Place, start: int, stop: int) -> NDArray[np.uint8]:
    """The bytes [start, stop) of a file, which must reach that far."""
    if isinstance(place, ObjectPath):
        return place.read_span(start, stop)
    data = np.fromfile(place, np.uint8, stop - start, offset=start)
    if len(data) != stop - start:
        raise FileNotFoundError(f"{place} ends before byte {stop}")
    return data


def read_ranges(place: Place, starts: Sequence[int], stops: Sequence[int]) -> list[Any]:
    """The bytes of each range of a file, as buffers."""
    if isinstance(place, ObjectPath):
        return list(place.read_ranges(starts, stops))
    with place.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return [mapped[start:stop] for start, stop in zip(starts, stops, strict=True)]


def remove_tree(place: Place) -> None:
    """Remove a folder and all that is in it; nothing happens where there is none."""
    if isinstance(place, ObjectPath):
        place.remove_tree()
        return
    with storage_errors(place):
        shutil.rmtree(place, ignore_errors=True)


def children(folder: Place) -> list[Place]:
    """The folders directly in a folder, by name; stray ones are passed over, and so are files."""
    found: list[Place] = [entry for entry in folder.iterdir() if not is_stray(entry.name)]
    return sorted((entry for entry in found if not _is_file(entry)), key=lambda entry: entry.name)


def _is_file(entry: Place) -> bool:
    # in a bucket a listing gives folders and objects alike; only the store's own metadata is an object at its top
    return entry.name == "zarr.json" if isinstance(entry, ObjectPath) else not entry.is_dir()


def stores_in(folder: Path) -> list[Path]:
    """The *.zarr of a folder, by name; macOS leaves a `._x.zarr` beside an x.zarr that it copies."""
    return sorted(path for path in folder.glob("*.zarr") if not is_stray(path.name))


def has_entries(place: Place) -> bool:
    """Whether anything lies at or below a place, stray files aside."""
    if isinstance(place, Path) and not place.is_dir():
        return place.exists()
    return any(not is_stray(entry.name) for entry in place.iterdir())


def local_folder(place: Place, what: str) -> Path:
    """A folder on this machine for what belongs to a store but must be a file: beside it, or in its cache."""
    if isinstance(place, Path):
        return place.with_name(f"{place.name}.{what}")
    spec = place.cache or CacheSpec(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "actstore")
    return spec.folder_of(str(place)).with_suffix(f".{what}")

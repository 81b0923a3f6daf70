"""Objects of a bucket as a `Place`: used like the files of a folder; and chunks of them that are kept on this machine.

An object appears whole or not at all, so a put needs no temporary name. Where two processes might write the same one,
the put is conditional: on there being none yet, or on its being the version that was read.

A chunk is fetched once, checked, then mapped like those of a local store. DIR/STORE/SPLIT/CHUNK-CRC is a raw chunk
file. Its name holds the crc that the store's ledger gives the chunk, so a file is never taken for newer or older rows;
after an append only the chunks that changed are fetched.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError, LockedError, StorageError
from actstore.spec import is_stray
from actstore.storage.atomic_file import CRC_BYTES, Data, FileLock, as_bytes, chunk_parts, storage_errors, write_atomic
from actstore.storage.bucket_client import Upload, bucket_of, object_errors, retried, threads
from actstore.storage.locks import TokenedObject

if TYPE_CHECKING:
    pass


SCHEMES = ("s3", "gs", "memory")
_ADJACENT = 4096  # bytes between two ranges that are cheaper to fetch than another request
_PART = 8 << 20  # bytes: a longer span is fetched in parts, side by side
_DOWNLOADS = 16  # at a time; one connection to S3 gives 50-100 MB/s
_LISTED = 1000  # objects in one answer of S3
_READS = 8  # of files or of their ranges, side by side; ranges of one file make up to 10 requests
T = TypeVar("T")
U = TypeVar("U")
Version = dict[str, str]
EnsureOwner = Callable[[], None]


@dataclass(frozen=True)
class ObjectPath:
    """The name of an object, or of all that begin with it: root "s3://bucket", key "imagenet.zarr/train".

    cache: where chunks of a store that were fetched are kept on this machine, see `ChunkCache`.
    """

    root: str
    key: str
    cache: CacheSpec | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        # surrogates stand for bytes that are no UTF-8, as names of objects are
        matched = re.fullmatch(r"([a-z0-9]+)://([^/\ud800-\udfff]+)/*([^\ud800-\udfff]*?)/*", url)
        if matched is None or matched[1] not in SCHEMES:
            schemes = " or ".join(f"{scheme}://BUCKET/NAME" for scheme in SCHEMES[:2])
            raise InvalidInputError(f"{url!r} is no place for a store; expected a path, {schemes}")
        if {"", ".", ".."} & set(matched[3].split("/")) and matched[3]:
            raise InvalidInputError(f"{url!r} has an empty part, '.' or '..' in its name; give the plain name")
        if find_spec("obstore") is None:
            raise StorageError(f"{url} needs the obstore package: pip install 'actstore[remote]'")
        return cls(f"{matched[1]}://{matched[2]}", matched[3])

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        return replace(self, key=self.key.rpartition("/")[0])

    @property
    def bucket(self) -> str:
        return self.root.partition("://")[2]

    def __truediv__(self, part: str) -> Self:
        return replace(self, key=f"{self.key}/{part}" if self.key else part)

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    def absolute(self) -> Self:
        return self

    @property
    def local_path(self) -> None:
        return None

    def with_cache(self, cache: CacheSpec | None) -> Self:
        return replace(self, cache=cache)

    def side_folder(self, what: str) -> Path:
        user = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "actstore"
        return (self.cache or CacheSpec(user)).folder_of(str(self)).with_suffix(f".{what}")

    def _ask(self, operation: str, **options: Any) -> Any:
        """A function of obstore, on this object; what the bucket says becomes one line."""
        import obstore

        with object_errors(self):
            return getattr(obstore, operation)(bucket_of(self.root), self.key, **options)

    def exists(self) -> bool:
        try:
            self._ask("head")
        except FileNotFoundError:
            return False
        return True

    def iterdir(self) -> Iterator[Self]:
        import obstore

        with object_errors(self):
            below = retried(lambda: obstore.list_with_delimiter(bucket_of(self.root), self.key))
        for key in (*below["common_prefixes"], *(entry["path"] for entry in below["objects"])):
            yield replace(self, key=key)

    def children(self) -> list[Self]:
        # a listing gives folders and objects alike; only the store's own metadata is an object at its top
        below = (entry for entry in self.iterdir() if not is_stray(entry.name) and entry.name != "zarr.json")
        return sorted(below, key=lambda entry: entry.name)

    def has_entries(self, besides: str = "") -> bool:
        return any(not is_stray(entry.name) and entry.name != besides for entry in self.iterdir())

    def read_bytes(self) -> bytes:
        return bytes(self.read_version()[0])

    def read_version(self) -> tuple[memoryview, Version]:
        result = self._ask("get")
        with object_errors(self):
            return memoryview(result.bytes()), _version(result.meta)

    def size(self) -> int:
        return int(self._ask("head")["size"])

    def read_ranges(self, starts: Sequence[int], stops: Sequence[int]) -> list[memoryview]:
        """Fetched side by side; ranges that all but touch share a request."""
        pieces = self._ask("get_ranges", starts=starts, ends=stops, coalesce=_ADJACENT)
        return [memoryview(piece) for piece in pieces]

    def read_span(self, start: int, stop: int) -> NDArray[np.uint8]:
        """In parts side by side where it is long."""
        out = np.empty(stop - start, np.uint8)

        def fetch(first: int) -> None:
            last = min(first + _PART, stop)
            piece = self._ask("get_range", start=first, end=last)
            if len(piece) != last - first:
                raise FileNotFoundError(f"{self} ends before byte {last}")
            out[first - start : last - start] = np.frombuffer(memoryview(piece), np.uint8)

        list(threads(_DOWNLOADS, "download").map(fetch, range(start, stop, _PART)))
        return out

    def map_parallel(self, read: Callable[[T], U], parts: Sequence[T]) -> Iterator[U]:
        return map(read, parts) if len(parts) < 2 else threads(_READS, "read").map(read, parts)

    def begin_write(self, *parts: Data, ensure_owner: EnsureOwner | None = None) -> Upload:
        return Upload(self, *parts, ensure_owner=ensure_owner)

    def put(self, data: Data, version: Version | None = None) -> Version:
        body, mode = as_bytes(data).data, "overwrite" if version is None else version or "create"
        try:
            return _version(self._ask("put", file=body, mode=mode, use_multipart=False))
        except LockedError:
            there, version = self.read_version()
            if there != body:  # else a put whose answer was lost was sent again, or a killed process has done the same
                raise
            return version

    def unlink(self) -> None:
        self._ask("delete")

    def tree_size(self) -> int:
        return sum(entry["size"] for page in self._pages() for entry in page)

    def contents(self) -> list[tuple[str, bool]]:
        start = len(self.key) + 1 if self.key else 0
        names = [entry["path"][start:] for page in self._pages() for entry in page]
        folders = {name[:place] for name in names for place, letter in enumerate(name) if letter == "/"}
        return [*((name, True) for name in folders), *((name, False) for name in names)]

    def remove_below(self, entries: Sequence[tuple[str, bool]]) -> None:
        import obstore

        names = [(self / name).key for name, is_folder in entries if not is_folder]
        for start in range(0, len(names), _LISTED):
            with object_errors(self):
                obstore.delete(bucket_of(self.root), names[start : start + _LISTED])

    def _pages(self) -> Iterator[Any]:
        """All objects below, as many at a time as the bucket lists in one answer."""
        import obstore

        listing, last = None, None

        def next_page() -> Any:
            nonlocal listing
            listing = listing or obstore.list(bucket_of(self.root), self.key, offset=last, chunk_size=_LISTED)
            try:
                return next(listing, None)
            except BaseException:
                listing = None  # cut short: the next try goes on after the last one that was listed
                raise

        with object_errors(self):
            while page := retried(next_page):
                yield page
                last = page[-1]["path"]

    def changing(self) -> AbstractContextManager[None]:
        return nullcontext()  # no lock: the put that ends the change is conditional

    def open_log(self) -> TokenedObject:
        return TokenedObject(self)

    def has_log_writer(self) -> bool:
        try:
            data = self.read_bytes()
        except FileNotFoundError:
            return False
        return bool(data) and not data.endswith(b"\n")


def _version(facts: Any) -> Version:
    return {key: facts[key] for key in ("e_tag", "version") if facts.get(key)}


DEFAULT_LIMIT = 100 << 30
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}  # powers of two


@dataclass(frozen=True)
class CacheSpec:
    """A folder, and how many bytes it may hold in all."""

    folder: Path
    limit: int = DEFAULT_LIMIT

    def folder_of(self, store: str) -> Path:
        """Where the chunks of a store lie; the name says which store to a person, the hash to the program."""
        plain = re.sub(r"\W+", "-", store.partition("://")[2])[-60:]
        return self.folder / f"{plain}-{hashlib.sha256(store.encode()).hexdigest()[:12]}"


def parse_size(text: str) -> int:
    """ "20G", "500 MB", "1.5TiB" or a number of bytes -> bytes, in powers of 1024."""
    matched = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE)
    if matched is None:
        raise InvalidInputError(f"a size is a number of bytes such as 20G or 500M, got {text!r}")
    return int(float(matched[1]) * (1 << _UNITS[matched[2].upper()]))


class ChunkCache:
    """The cached chunks of one split."""

    def __init__(self, spec: CacheSpec, store: str, split: str, crcs: list[int], chunk_bytes: int) -> None:
        self._spec, self._bytes = spec, chunk_bytes + CRC_BYTES
        folder = spec.folder_of(store) / split
        self.paths = [folder / f"{chunk}-{crc:08x}" for chunk, crc in enumerate(crcs)]

    def has(self, chunk: int) -> bool:
        """Whether the chunk is here, whole; a file of another size or another crc at its end is dropped."""
        path = self.paths[chunk]
        try:
            with path.open("rb") as file:
                file.seek(-CRC_BYTES, os.SEEK_END)
                whole = file.tell() + CRC_BYTES == self._bytes
                sound = whole and f"{int.from_bytes(file.read(), 'little'):08x}" == path.name.rpartition("-")[2]
        except OSError:
            return False
        if not sound:
            path.unlink(missing_ok=True)
            return False
        with suppress(OSError):
            os.utime(path)  # used now: the last to go when room is needed
        return True

    def has_room(self) -> bool:
        """Whether a chunk more can be kept, if others are dropped for it."""
        return self._droppable() is not None

    def add(self, chunk: int, values: Data, crc: int) -> bool:
        """Keep a chunk whose values were checked against `crc`; False where there is no room for it."""
        path = self.paths[chunk]
        with storage_errors(path), FileLock(self._spec.folder / ".lock"):
            dropped = self._droppable()
            if dropped is None:
                return False
            for old in dropped:
                old.unlink(missing_ok=True)
            write_atomic(path, *chunk_parts(values, crc))
        return True

    def _droppable(self) -> list[Path] | None:
        """What has to go for one chunk more, least recently used first; None where that does not suffice.

        Chunks of this split stay: a store larger than the cache would otherwise push out what it needs next.
        """
        files = _files(self._spec.folder)
        total, keep, dropped = sum(size for _, size, _ in files), set(self.paths), []
        for _, size, path in sorted(files):
            if total + self._bytes <= self._spec.limit:
                break
            if path not in keep:
                dropped.append(path)
                total -= size
        return dropped if total + self._bytes <= self._spec.limit else None


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """(last used, bytes, path) of every cached chunk, and of nothing else that may lie in the folder."""
    files = []
    for store in folder.glob("*/"):
        if re.fullmatch(r".*-[0-9a-f]{12}", store.name):
            for path in store.glob("*/*"):
                if re.fullmatch(r"[0-9]+-[0-9a-f]{8}(\.part)?", path.name):
                    with suppress(FileNotFoundError):
                        facts = path.stat()
                        files.append((facts.st_mtime, facts.st_size, path))
    return files

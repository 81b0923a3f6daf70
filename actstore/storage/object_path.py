"""Objects of a bucket, used like the files of a folder.

An object appears whole or not at all, so a put needs no temporary name. Where two processes might write the
same one, the put is conditional: on there being none yet, or on its being the version that was read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError, LockedError, StorageError
from actstore.storage.atomic_file import Data, as_bytes
from actstore.storage.bucket_client import bucket_of, object_errors

if TYPE_CHECKING:
    from actstore.storage.chunk_cache import CacheSpec

SCHEMES = ("s3", "gs", "memory")
_ADJACENT = 4096  # bytes between two ranges that are cheaper to fetch than another request
_PART = 8 << 20  # bytes: a longer span is fetched in parts, side by side
_UPLOADS, _DOWNLOADS = 4, 16  # at a time; one connection to S3 gives 50-100 MB/s
Version = dict[str, str]
Guard = Callable[[], None]


@dataclass(frozen=True)
class ObjectPath:
    """The name of an object, or of all that begin with it: root "s3://bucket", key "imagenet.zarr/train".

    cache: where chunks that were read are kept on this machine; see cache.py.
    """

    root: str
    key: str
    cache: CacheSpec | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, url: str, cache: CacheSpec | None = None) -> ObjectPath:
        matched = re.fullmatch(r"([a-z0-9]+)://([^/]+)/*(.*?)/*", url)
        if matched is None or matched[1] not in SCHEMES:
            schemes = " or ".join(f"{scheme}://BUCKET/NAME" for scheme in SCHEMES[:2])
            raise InvalidInputError(f"{url!r} is no place for a store; expected a path, {schemes}")
        if {"", ".", ".."} & set(matched[3].split("/")) and matched[3]:
            raise InvalidInputError(f"{url!r} has an empty part, '.' or '..' in its name; give the plain name")
        if find_spec("obstore") is None:
            raise StorageError(f"{url} needs the obstore package: pip install 'actstore[remote]'")
        return cls(f"{matched[1]}://{matched[2]}", matched[3], cache)

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        return replace(self, key=self.key.rpartition("/")[0])

    @property
    def bucket(self) -> str:
        return self.root.partition("://")[2]

    def __truediv__(self, part: str) -> ObjectPath:
        return replace(self, key=f"{self.key}/{part}" if self.key else part)

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    def exists(self) -> bool:
        """Whether there is an object of this very name."""
        import obstore

        try:
            with object_errors(self):
                obstore.head(bucket_of(self.root), self.key)
        except FileNotFoundError:
            return False
        return True

    def iterdir(self) -> Iterator[ObjectPath]:
        """The folders and objects directly below."""
        import obstore

        with object_errors(self):
            found = obstore.list_with_delimiter(bucket_of(self.root), self.key or None)
        for key in (*found["common_prefixes"], *(entry["path"] for entry in found["objects"])):
            yield replace(self, key=key)

    def read_bytes(self) -> bytes:
        return bytes(self.read()[0])

    def read(self) -> tuple[memoryview, Version]:
        """The whole object, and which version of it this is."""
        import obstore

        with object_errors(self):
            result = obstore.get(bucket_of(self.root), self.key)
            return memoryview(result.bytes()), _version(result.meta)

    def size(self) -> int:
        import obstore

        with object_errors(self):
            return obstore.head(bucket_of(self.root), self.key)["size"]

    def read_ranges(self, starts: Sequence[int], stops: Sequence[int]) -> list[memoryview]:
        """The bytes of each range, fetched side by side; ranges that all but touch share a request."""
        import obstore

        with object_errors(self):
            found = obstore.get_ranges(bucket_of(self.root), self.key, starts=starts, ends=stops, coalesce=_ADJACENT)
        return [memoryview(piece) for piece in found]

    def read_span(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The bytes [start, stop), in parts side by side where they are many."""
        import obstore

        out = np.empty(stop - start, np.uint8)

        def fetch(first: int) -> None:
            last = min(first + _PART, stop)
            with object_errors(self):
                piece = obstore.get_range(bucket_of(self.root), self.key, start=first, end=last)
            if len(piece) != last - first:
                raise FileNotFoundError(f"{self} ends before byte {last}")
            out[first - start : last - start] = np.frombuffer(memoryview(piece), np.uint8)

        list(threads(_DOWNLOADS, "download").map(fetch, range(start, stop, _PART)))
        return out

    def put(self, data: Data, condition: Version | None = None) -> Version:
        """Write an object. condition: the version it must have now, {} for none at all; else LockedError."""
        import obstore

        mode: Any = "overwrite" if condition is None else condition or "create"
        with object_errors(self):
            done = obstore.put(bucket_of(self.root), self.key, as_bytes(data).data, mode=mode, use_multipart=False)
        return _version(done)

    def create(self, data: Data) -> None:
        """Write an object that does not exist yet; LockedError where there is another."""
        try:
            self.put(data, condition={})
        except LockedError:
            if self.read()[0] != as_bytes(data).data:  # else a put whose answer was lost was sent again
                raise

    def unlink(self) -> None:
        import obstore

        with object_errors(self):
            obstore.delete(bucket_of(self.root), self.key)

    def tree_size(self) -> int:
        """Bytes of every object below."""
        import obstore

        with object_errors(self):
            return sum(entry["size"] for page in obstore.list(bucket_of(self.root), self.key) for entry in page)

    def remove_tree(self) -> None:
        """Every object whose name begins with this one's as a folder."""
        import obstore

        with object_errors(self):
            bucket = bucket_of(self.root)
            for page in obstore.list(bucket, self.key):
                obstore.delete(bucket, [entry["path"] for entry in page])


class Upload:
    """An object on its way; `finish` waits until it is there. Several travel side by side."""

    def __init__(self, path: ObjectPath, *parts: Data, guard: Guard | None = None) -> None:
        body = b"".join(as_bytes(part).data for part in parts)  # a copy: the caller's buffer is filled again meanwhile
        self.size = len(body)
        send = path.put if guard is None else partial(_put_guarded, path, guard=guard)
        self._sent: Future[Any] = threads(_UPLOADS, "upload").submit(send, body)

    def finish(self) -> int:
        """There from here on. Returns the size."""
        self._sent.result()
        return self.size

    def abandon(self) -> None:
        """An object that nothing names does no harm, and is overwritten when its turn comes again."""
        if not self._sent.cancel():
            wait([self._sent])


def _put_guarded(path: ObjectPath, body: bytes, guard: Guard) -> None:
    """Write an object that is new, or replace one when `guard` says that this is still ours to do.

    The guard is asked between reading the old version and replacing that very version, so what a process that has
    taken over writes in its stead is never overwritten.
    """
    condition: Version = {}
    while True:
        try:
            path.put(body, condition)
            return
        except LockedError:
            there, condition = path.read()
            if there == body:  # left by a killed process, or a put that was sent twice
                return
            guard()


def threads(count: int, name: str) -> ThreadPoolExecutor:
    """Threads that wait for a bucket, kept for the next call; a forked process gets its own."""
    return _threads(count, name, os.getpid())


@cache
def _threads(count: int, name: str, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix=f"actstore-{name}")


def _version(facts: Any) -> Version:
    return {key: facts[key] for key in ("e_tag", "version") if facts.get(key)}

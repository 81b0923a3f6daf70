"""Chunks on their way to disk: written on a thread of their own, entered in the ledger in order; and what is durable
but not yet committed, beside the ledger, which is removed when a build commits.

`source.json`: where the rows come from. `rows-N.npz`: labels, ids and columns of chunk N, which is on disk, until they
are merged into the split's arrays. `open-R.npz`: all rows of the chunk that is not full yet, from row R on, with their
values, written anew whenever they are made durable. A chunk of 8,192 photos takes minutes, and no kill may lose them.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import IncompleteError, LockedError
from actstore.layout.ledger import Entry, chunk_path, decode_units, encode_chunk, has_writer, open_ledger, read_ledger
from actstore.layout.metadata import ACTIVATIONS, remove_own
from actstore.spec import Json, SplitSpec, StoreSpec
from actstore.storage.atomic_file import CRC_BYTES, chunk_parts, crc32c, extend_crc32c
from actstore.storage.locks import OwnedLog
from actstore.storage.object_path import EnsureOwner
from actstore.storage.place import Place, Storing, read_file, write_file
from actstore.writing.row_checks import RowMetadata, pack, unpack

OpenRows = tuple[NDArray[Any], RowMetadata]  # values (n, dim) of rows of the open chunk, and what belongs to them

_OPEN = re.compile(r"open-(\d+)\.npz")


class Pending:
    def __init__(self, array: Place) -> None:
        self.path = array / "pending"
        self._kept: set[int] = set()  # first rows of open chunks that this process wrote or read

    def exists(self) -> bool:
        return (self.path / "source.json").exists()

    def begin(self, source: Mapping[str, Json] | None) -> None:
        text = json.dumps(source, sort_keys=True).encode()
        (self.path / "source.json").put(text, version={})  # of two at once, one succeeds

    def require_source(self, source: Mapping[str, Json] | None) -> None:
        """A resumed build must bring what the interrupted one began with: rows are never mixed."""
        begun = json.loads((self.path / "source.json").read_bytes())
        if _as_compared(begun) != _as_compared(json.loads(json.dumps(source))):
            raise IncompleteError(
                f"{self.path.parent.parent} has an unfinished build from {describe(begun)}, this one is from "
                f"{describe(source)}{_difference(begun, source)}; repeat the first, or discard it "
                "with restart=True (--restart)"
            )

    def count_rows(self, store: StoreSpec, committed: SplitSpec) -> int:
        """Rows that are durable and not committed."""
        durable = sum(entry.rows for entry in read_ledger(self.path.parent)[0])
        kept = self.kept(durable, store.of_split(committed))
        return max(0, durable + (0 if kept is None else len(kept[0])) - committed.rows)

    def is_left_over(self, committed: SplitSpec, ledger_bytes: int) -> bool:
        """Whether a kill just after the commit left all this: nothing is durable that is not committed."""
        return committed.complete and committed.ledger_bytes == ledger_bytes and not self.has_kept(committed.rows)

    def remove_left_over(self, committed: Callable[[], SplitSpec]) -> None:
        """Remove it where it is. committed: reads what is committed now."""
        array = self.path.parent
        if not self.path.has_entries():
            return
        if has_writer(array):  # in a bucket: an append may be under way, unless these are remains of what is committed
            begun = json.loads((self.path / "source.json").read_bytes()) if self.exists() else None
            source = committed().sources[-1]
            if not isinstance(begun, dict) or any(source.get(key) != value for key, value in begun.items()):
                return
        # LockedError: it is no leftover, somebody is writing
        with suppress(LockedError), closing(open_ledger(array)) as ledger:
            if self.is_left_over(committed(), ledger.size()):
                self.remove()

    def read(self, chunk: int) -> RowMetadata:
        with np.load(io.BytesIO(read_file(self.file(chunk)).data), allow_pickle=False) as arrays:
            return unpack(arrays)

    def keep(self, first: int, values: NDArray[Any], rows: RowMetadata, ensure_owner: EnsureOwner) -> None:
        """Make rows of the open chunk durable, from row `first` of the split on."""
        body = pack(rows, values=values)
        ensure_owner()
        write_file(self._open_file(first), *chunk_parts(body, crc32c(body)), ensure_owner=ensure_owner)
        self._kept.add(first)

    def kept(self, first: int, spec: StoreSpec) -> OpenRows | None:
        """The rows from `first` on that were made durable; those before it are in a chunk that is whole by now."""
        with suppress(FileNotFoundError, KeyError, ValueError, zipfile.BadZipFile):
            with np.load(io.BytesIO(self._read_open(first).data)) as arrays:
                values, rows = arrays["values"], unpack(arrays)
            if values.dtype == np.dtype("<" + spec.dtype) and values.shape[1:] == (spec.dim,):
                self._kept.add(first)
                return values, rows
        return None

    def has_kept(self, first: int) -> bool:
        """Whether such rows are there undamaged."""
        with suppress(FileNotFoundError, ValueError):
            self._read_open(first)
            return True
        return False

    def remove_kept(self, besides: int | None = None) -> None:
        """Remove what was kept of open chunks, but for the rows from `besides` on."""
        for name, _ in self.path.contents():
            if (found := _OPEN.fullmatch(name)) is not None and int(found[1]) != besides:
                self._remove_open(int(found[1]))

    def forget_kept(self, end: int) -> None:
        """Remove what was kept of a chunk that is on disk up to row `end`."""
        for first in [*self._kept]:
            if first < end:
                self._remove_open(first)

    def remove(self) -> None:
        remove_own(self.path, "pending")

    def file(self, chunk: int) -> Place:
        """Labels, ids and columns of a chunk."""
        return self.path / f"rows-{chunk}.npz"

    def _read_open(self, first: int) -> NDArray[np.uint8]:
        data = read_file(self._open_file(first))
        return decode_units(data, len(data) - CRC_BYTES)

    def _remove_open(self, first: int) -> None:
        self._kept.discard(first)
        with suppress(FileNotFoundError):
            self._open_file(first).unlink()

    def _open_file(self, first: int) -> Place:
        return self.path / f"open-{first}.npz"


def describe(source: Mapping[str, Json] | None) -> str:
    if not source:
        return "a program"
    return str(source.get("path") or source.get("kind") or "another source")


def _as_compared(source: Any) -> Any:
    """A folder is the same one with a slash at its end."""
    path = source.get("path") if isinstance(source, dict) else None
    return {**source, "path": path.rstrip("/") or path} if isinstance(path, str) else source


def _difference(begun: Mapping[str, Json] | None, source: Mapping[str, Json] | None) -> str:
    begun, source = begun or {}, source or {}
    changed = sorted(key for key in {*begun, *source} if begun.get(key) != source.get(key))
    return f" (they differ in {', '.join(changed)})" if changed else ""


_BUFFERS = 3  # one being filled, one being written, one waiting


class ChunkWriter:
    """Hands out chunk buffers and writes them while the caller fills the next.

    Two threads, a stage each: one copies a chunk to the file system, the other waits for the disk and
    enters the chunk in the ledger. Both keep the order of chunks.
    """

    def __init__(self, split: Place, spec: StoreSpec, ledger: OwnedLog, pending: Pending) -> None:
        self._array = split / ACTIVATIONS
        self._spec = spec
        self._ledger = ledger
        self._pending = pending
        self._free = [np.zeros((spec.chunk_rows, spec.dim), "<" + spec.dtype) for _ in range(_BUFFERS)]
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="actstore-write")
        self._settling = ThreadPoolExecutor(max_workers=1, thread_name_prefix="actstore-settle")
        self._failure: BaseException | None = None
        self._written: deque[tuple[Future[Future[None]], NDArray[Any]]] = deque()
        self._settled: deque[Future[None]] = deque()

    def buffer(self) -> NDArray[Any]:
        """A (chunk_rows, dim) buffer to fill; waits for the file system when all are taken."""
        while not self._free:
            self._reclaim_one()
        while len(self._settled) > _BUFFERS:
            self._settled.popleft().result()
        return self._free.pop()

    def submit(self, chunk: int, values: NDArray[Any], used: int, rows: RowMetadata) -> None:
        """Queue a chunk, of which the first `used` rows count; its buffer comes back by itself."""
        values[used:] = 0  # padding, so that equal rows give equal files
        self._written.append((self._writing.submit(self._write, chunk, values, used, rows), values))

    def drain(self) -> None:
        """Wait until everything queued is durable; raises what a write raised."""
        while self._written:
            self._reclaim_one()
        while self._settled:
            self._settled.popleft().result()
        if self._failure is not None:  # of a chunk that was asked for before
            raise self._failure

    @property
    def is_sound(self) -> bool:
        """Whether no write has failed so far."""
        return self._failure is None

    def close(self) -> None:
        """Wait for what is queued; errors were raised by `drain`, or belong to a build that stops anyway."""
        self._writing.shutdown(wait=True)
        self._settling.shutdown(wait=True)

    def _reclaim_one(self) -> None:
        future, values = self._written.popleft()
        self._settled.append(future.result())
        self._free.append(values)

    def _write(self, chunk: int, values: NDArray[Any], used: int, rows: RowMetadata) -> Future[None]:
        with self._stopping_at_first_error():
            # to be finished before the chunk's line in the ledger
            sidecar = self._pending.file(chunk).begin_write(pack(rows), ensure_owner=self._ledger.require_own)
            crc = crc32c(values)
            try:
                file, file_crc = begin_storing(self._array, self._spec, chunk, values, crc, self._ledger)
            except BaseException:
                sidecar.abandon()
                raise
        return self._settling.submit(self._settle, sidecar, file, Entry(chunk, used, crc, 0, file_crc))

    def _settle(self, sidecar: Storing, file: Storing, entry: Entry) -> None:
        try:
            with self._stopping_at_first_error():
                sidecar.finish()
                self._ledger.append(entry._replace(stored=file.finish()).line())
                self._pending.forget_kept(entry.chunk * self._spec.chunk_rows + entry.rows)
        except BaseException:
            sidecar.abandon()
            file.abandon()
            raise

    @contextmanager
    def _stopping_at_first_error(self) -> Iterator[None]:
        """The ledger must never name a chunk after one that is not there."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise


def begin_storing(
    array: Place, spec: StoreSpec, chunk: int, values: NDArray[Any], crc: int, ledger: OwnedLog
) -> tuple[Storing, int | None]:
    """Write one whole chunk. Returns it on its way, and the crc of its file where the file does not carry that of
    its values."""
    parts = encode_chunk(spec, values, crc)
    file_crc = None if spec.is_raw else reduce(extend_crc32c, parts, 0)
    return chunk_path(array, chunk).begin_write(*parts, ensure_owner=ledger.require_own), file_crc

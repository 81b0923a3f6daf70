"""Chunks on their way to disk: written on a thread of their own, entered in the ledger in order; and what is durable
but not yet committed, beside the ledger, which is removed when a build commits.

`source.json`: where the rows come from. `rows-N.npz`: labels, ids and columns of chunk N, which is on disk, until they
are merged into the split's arrays. `open-R.npz`: rows of a chunk that is not full yet, from row R on, with their
values. A chunk of 8,192 photos takes minutes: so that a kill does not lose them all, a thread makes the rows of an open
chunk durable now and then, also while a slow source makes its next block.
"""

from __future__ import annotations

import io
import json
import re
import threading
import time
import weakref
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import IncompleteError, LockedError
from actstore.layout.ledger import Entry, chunk_path, encode_chunk, has_writer, open_ledger, read_ledger
from actstore.layout.metadata import ACTIVATIONS, remove_own
from actstore.spec import Json, SplitSpec, StoreSpec
from actstore.storage.atomic_file import CRC_BYTES, chunk_parts, crc32c, extend_crc32c
from actstore.storage.locks import OwnedLog, repeat
from actstore.storage.object_path import EnsureOwner
from actstore.storage.place import Place, Storing, read_file, write_file
from actstore.writing.row_checks import RowMetadata, pack, unpack

SECONDS = 16.0  # a row waits at most so long; with the time that its write takes, 20 s


class FlushTimer:
    """Calls `keep` while the oldest row that is not durable has waited for three quarters of SECONDS.

    It holds no reference to what `keep` is bound to: a writer that is dropped lets go of its split.
    """

    def __init__(self, keep: Callable[[], None]) -> None:
        self._keep = weakref.WeakMethod(keep)
        self.since: float | None = None  # when the oldest row came that is not durable
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def rows_came(self) -> None:
        """Some rows are not durable yet. The first call starts the thread."""
        if self.since is None:
            self.since = time.monotonic()
        if self._thread is None:
            self._thread = repeat(SECONDS / 4, self.keep_if_due, self._stopped, "actstore-keep")

    def stop(self) -> None:
        """Returns when the thread does nothing any more."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def keep_if_due(self) -> bool:
        """Whether there may be more to do."""
        keep = self._keep()
        if keep is None:
            return False
        if self.since is not None and time.monotonic() - self.since >= SECONDS * 3 / 4:
            try:
                keep()
            except BaseException as error:  # noqa: BLE001 - the next call of the writer raises it
                self.failure = error
                return False
        return True


@dataclass(frozen=True)
class OpenRows:
    """Rows of the open chunk from row `first` of the split on: values (n, dim) and what belongs to them."""

    first: int
    values: NDArray[Any]
    rows: RowMetadata

    @property
    def end(self) -> int:
        return self.first + len(self.values)


class Pending:
    def __init__(self, array: Place) -> None:
        self.path = array / "pending"
        self._lock = Lock()  # chunks settle on a thread of their own
        self._open: set[int] = set()  # first rows of the pieces that this process wrote or read
        self._last = (-1, 0)  # where the newest of them ends, and its crc

    def exists(self) -> bool:
        return (self.path / "source.json").exists()

    def begin(self, source: Mapping[str, Json] | None) -> None:
        text = json.dumps(source, sort_keys=True).encode()
        (self.path / "source.json").put(text, version={})  # of two at once, one succeeds

    def require_source(self, source: Mapping[str, Json] | None) -> None:
        """A resumed build must bring what the interrupted one began with: rows are never mixed."""
        begun = json.loads((self.path / "source.json").read_bytes())
        if begun != json.loads(json.dumps(source)):
            raise IncompleteError(
                f"{self.path.parent.parent} has an unfinished build from {describe(begun)}, this one is from "
                f"{describe(source)}{_difference(begun, source)}; repeat the first, or discard it "
                "with restart=True (--restart)"
            )

    def was_of(self, source: Mapping[str, Json]) -> bool:
        """Whether these are the remains of the build that this committed source describes."""
        begun = json.loads((self.path / "source.json").read_bytes()) if self.exists() else None
        return isinstance(begun, dict) and all(source.get(key) == value for key, value in begun.items())

    def count_rows(self, store: StoreSpec, committed: SplitSpec) -> int:
        """Rows that are durable and not committed."""
        spec, durable = store.of_split(committed), sum(entry.rows for entry in read_ledger(self.path.parent)[0])
        kept = sum(len(piece.values) for piece in self.kept(durable, spec.dim, spec.dtype))
        return max(0, durable + kept - committed.rows)

    def is_left_over(self, committed: SplitSpec, ledger_bytes: int) -> bool:
        """Whether a kill just after the commit left all this: nothing is durable that is not committed."""
        return committed.complete and committed.ledger_bytes == ledger_bytes and not self.has_kept(committed.rows)

    def remove_left_over(self, committed: Callable[[], SplitSpec]) -> None:
        """Remove it where it is. committed: reads what is committed now."""
        array = self.path.parent
        if not self.path.has_entries() or (has_writer(array) and not self.was_of(committed().sources[-1])):
            return  # in a bucket: an append may be under way
        # LockedError: it is no leftover, somebody is writing
        with suppress(LockedError), closing(open_ledger(array)) as ledger:
            if self.is_left_over(committed(), ledger.size()):
                self.remove()

    def begin_chunk(self, chunk: int, rows: RowMetadata, ensure_owner: EnsureOwner) -> Storing:
        """Labels, ids and columns of a chunk, to be finished before its line in the ledger."""
        return self._file(chunk).begin_write(pack(rows), ensure_owner=ensure_owner)

    def read(self, chunk: int) -> RowMetadata:
        with np.load(io.BytesIO(read_file(self._file(chunk)).data), allow_pickle=False) as arrays:
            return unpack(arrays)

    def keep(self, piece: OpenRows, ensure_owner: EnsureOwner) -> None:
        """Make rows of the open chunk durable. A piece names the crc of the one before it, so that pieces of two
        writers are never taken for one."""
        end, crc = self._last
        before = np.array([crc if end == piece.first else 0], np.uint32)
        body = pack(piece.rows, values=piece.values, before=before)
        crc = crc32c(body)
        ensure_owner()
        write_file(self._piece(piece.first), *chunk_parts(body, crc), ensure_owner=ensure_owner)
        self._note(piece, crc)

    def kept(self, durable: int, dim: int, dtype: str) -> Iterator[OpenRows]:
        """The pieces that follow row `durable`, one upon the other; what a kill has torn ends them."""
        first: int = durable
        while (read := self._read_piece(first)) is not None:
            piece, before, crc = read
            fits = piece.values.dtype == np.dtype("<" + dtype) and piece.values.shape[1:] == (dim,)
            if not fits or (first > durable and before != self._last[1]):
                return
            self._note(piece, crc)
            yield piece
            first = piece.end

    def has_kept(self, durable: int) -> bool:
        """Whether a piece follows row `durable`; earlier ones are left over from chunks that are whole by now."""
        return self._read_piece(durable) is not None

    def forget_kept(self, end: int) -> None:
        """Remove the pieces before row `end`, whose chunk is on disk."""
        with self._lock:
            over = {first for first in self._open if first < end}
            self._open -= over
        for first in over:
            with suppress(FileNotFoundError):
                self._piece(first).unlink()

    def remove_kept(self) -> None:
        """Remove every piece, known or not."""
        if self.path.has_entries():
            for entry in self.path.iterdir():
                if re.fullmatch(r"open-\d+\.npz(\.part)?", entry.name):
                    entry.unlink()
        self._open, self._last = set(), (-1, 0)

    def has(self, chunk: int) -> bool:
        return self._file(chunk).exists()

    def remove(self) -> None:
        self.remove_kept()  # before what says whose they are
        remove_own(self.path, "pending")

    def _file(self, chunk: int) -> Place:
        return self.path / f"rows-{chunk}.npz"

    def _piece(self, first: int) -> Place:
        return self.path / f"open-{first}.npz"

    def _note(self, piece: OpenRows, crc: int) -> None:
        with self._lock:
            self._open.add(piece.first)
            self._last = (piece.end, crc)

    def _read_piece(self, first: int) -> tuple[OpenRows, int, int] | None:
        """A piece, the crc that it says the one before has, and its own; None if it is not there or not sound."""
        try:
            data = read_file(self._piece(first))
        except FileNotFoundError:
            return None
        body, crc = data[:-CRC_BYTES], int.from_bytes(data[-CRC_BYTES:].tobytes(), "little")
        if len(body) == 0 or crc32c(body) != crc:
            return None
        with suppress(KeyError, ValueError, zipfile.BadZipFile), np.load(io.BytesIO(body.data)) as arrays:
            return OpenRows(first, arrays["values"], unpack(arrays)), int(arrays["before"][0]), crc
        return None


def describe(source: Mapping[str, Json] | None) -> str:
    if not source:
        return "a program"
    return str(source.get("path") or source.get("kind") or "another source")


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
            sidecar = self._pending.begin_chunk(chunk, rows, self._ledger.require_own)
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

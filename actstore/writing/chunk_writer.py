"""Chunks on their way to disk: written on a thread of their own, entered in the ledger in order; and where a writer
goes on: what an interrupted build or append has left is continued, refused or discarded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, IncompleteError
from actstore.layout.columns import uncommitted_columns
from actstore.layout.ledger import Entry, chunk_path, encode_chunk, read_ledger
from actstore.layout.metadata import ACTIVATIONS
from actstore.layout.own_files import remove_array, remove_split
from actstore.reading.reader import open_rows
from actstore.spec import Json, SplitSpec, StoreSpec
from actstore.storage.atomic_file import crc32c, extend_crc32c
from actstore.storage.owned_log import OwnedLog
from actstore.storage.place import Place, Storing
from actstore.writing.pending_rows import OpenRows, Pending
from actstore.writing.row_checks import RowMetadata

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


def find_position(
    split: Place, spec: StoreSpec, committed: SplitSpec, ledger: OwnedLog, pending: Pending,
    source: Mapping[str, Json] | None, resume: bool, restart: bool,
) -> tuple[int, list[OpenRows]]:  # fmt: skip
    """How many rows the chunks on disk hold, and the rows of the open chunk that were kept beside them."""
    array = split / ACTIVATIONS
    whole = read_ledger(array)[1]
    ledger.truncate(whole)  # drop half a line
    if pending.path.has_entries() and pending.is_left_over(committed, whole):
        pending.remove()  # killed between commit and cleaning up
    if pending.exists() and restart:
        _discard(split, spec, committed, ledger, pending)
    elif pending.exists():
        pending.require_source(source)
    if not pending.exists():
        pending.remove_kept()
        pending.begin(source)
    durable = sum(entry.rows for entry in read_ledger(array)[0])
    if durable < committed.rows:
        raise DamagedError(f"the ledger of {split} names {durable} rows, expected {committed.rows}")
    kept = list(pending.kept(durable, spec.dim, spec.dtype))
    end = kept[-1].end if kept else durable
    if end > committed.rows and source is None and not resume:
        raise IncompleteError(
            f"{split} holds {end - committed.rows} rows of an interrupted build; go on with row {end} and "
            "resume=True, or drop them with restart=True"
        )
    return durable, kept


def sound_rows(array: Place, spec: StoreSpec, chunk: int, stop: int) -> NDArray[Any]:
    """Rows of a chunk that is to be written again: damage must not get a checksum of its own."""
    rows = open_rows(array, spec, stop)
    rows.check([chunk])
    return rows.read(chunk * spec.chunk_rows, stop)


def drop_uncommitted(split: Place, spec: StoreSpec, committed: SplitSpec, ledger: OwnedLog, pending: Pending) -> None:
    """Leave nothing of rows that were refused: of a new split nothing at all, else what was committed."""
    ledger.require_own()
    if committed.complete:
        _discard(split, spec, committed, ledger, pending)
    else:
        (split / "zarr.json").unlink()  # first: without it there is no split
        remove_split(split)


def _discard(split: Place, spec: StoreSpec, committed: SplitSpec, ledger: OwnedLog, pending: Pending) -> None:
    """Back to what was committed: cut the last chunk, remove later ones, forget pending rows."""
    array, rows = split / ACTIVATIONS, committed.rows
    for chunk in range(-(-rows // spec.chunk_rows), len(read_ledger(array)[0]) + 2):
        with suppress(FileNotFoundError):
            chunk_path(array, chunk).unlink()
    if rows % spec.chunk_rows:
        chunk = rows // spec.chunk_rows
        values = np.zeros((spec.chunk_rows, spec.dim), "<" + spec.dtype)
        values[: rows % spec.chunk_rows] = sound_rows(array, spec, chunk, rows)
        begin_storing(array, spec, chunk, values, crc32c(values), ledger)[0].finish()
    ledger.truncate(committed.ledger_bytes)
    for name in uncommitted_columns(split, committed):
        remove_array(split / name)
    pending.remove()

"""Chunks on their way to disk: written on a thread of their own, entered in the ledger in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.layout.chunk_file import chunk_path, encode_chunk
from actstore.layout.ledger import Entry
from actstore.layout.metadata import ACTIVATIONS
from actstore.spec import StoreSpec
from actstore.storage.atomic_file import crc32c, extend_crc32c
from actstore.storage.owned_log import OwnedLog
from actstore.storage.place import Place, Storing
from actstore.writing.pending_rows import Pending
from actstore.writing.row_facts import RowFacts

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

    def submit(self, chunk: int, values: NDArray[Any], used: int, rows: RowFacts) -> None:
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

    def _write(self, chunk: int, values: NDArray[Any], used: int, rows: RowFacts) -> Future[None]:
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
    return chunk_path(array, chunk).begin_write(*parts, guard=ledger.require_own), file_crc

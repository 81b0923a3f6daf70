"""Chunks on their way to disk: written on a thread of their own, entered in the ledger in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actstore.chunkfile import chunk_parts, chunk_path, crc32c
from actstore.errors import StorageError
from actstore.files import AtomicFile, storage_errors, sync_directory
from actstore.hierarchy import ACTIVATIONS, open_array, resize
from actstore.ledger import Entry, LedgerFile
from actstore.pending import LabelsAndIds, Pending
from actstore.spec import StoreSpec

_BUFFERS = 3  # one being filled, one being written, one waiting


class ChunkWriter:
    """Hands out chunk buffers and writes them while the caller fills the next.

    Two threads, a stage each: one copies a chunk to the file system, the other waits for the disk and
    enters the chunk in the ledger. Both keep the order of chunks.
    """

    def __init__(self, split: Path, spec: StoreSpec, ledger: LedgerFile, pending: Pending) -> None:
        self._array = split / ACTIVATIONS
        self._spec = spec
        self._ledger = ledger
        self._pending = pending
        self._free = [np.zeros((spec.chunk_rows, spec.dim), "<" + spec.dtype) for _ in range(_BUFFERS)]
        self._writing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="actstore-write")
        self._settling = ThreadPoolExecutor(max_workers=1, thread_name_prefix="actstore-settle")
        self._failed = False
        self._written: deque[tuple[Future[Future[None]], NDArray[Any]]] = deque()
        self._settled: deque[Future[None]] = deque()

    def buffer(self) -> NDArray[Any]:
        """A (chunk_rows, dim) buffer to fill; waits for the file system when all are taken."""
        while not self._free:
            self._reclaim_one()
        while len(self._settled) > _BUFFERS:
            self._settled.popleft().result()
        return self._free.pop()

    def submit(self, chunk: int, values: NDArray[Any], used: int, rows: LabelsAndIds) -> None:
        """Queue a chunk, of which the first `used` rows count; its buffer comes back by itself."""
        values[used:] = 0  # padding, so that equal rows give equal files
        self._written.append((self._writing.submit(self._write, chunk, values, used, rows), values))

    def drain(self) -> None:
        """Wait until everything queued is durable; raises what a write raised."""
        while self._written:
            self._reclaim_one()
        while self._settled:
            self._settled.popleft().result()

    def close(self) -> None:
        """Wait for what is queued; errors were raised by `drain`, or belong to a build that stops anyway."""
        self._writing.shutdown(wait=True)
        self._settling.shutdown(wait=True)

    def _reclaim_one(self) -> None:
        future, values = self._written.popleft()
        self._settled.append(future.result())
        self._free.append(values)

    def _write(self, chunk: int, values: NDArray[Any], used: int, rows: LabelsAndIds) -> Future[None]:
        with self._stopping_at_first_error():
            sidecar = self._pending.begin_chunk(chunk, rows)
            crc = crc32c(values)
            try:
                file = begin_storing(self._array, self._spec, chunk, values, crc)
            except BaseException:
                sidecar.abandon()
                raise
        return self._settling.submit(self._settle, sidecar, file, chunk, used, crc)

    def _settle(self, sidecar: AtomicFile, file: Storing, chunk: int, used: int, crc: int) -> None:
        try:
            with self._stopping_at_first_error():
                sidecar.finish()
                self._ledger.append(Entry(chunk, used, crc, file.finish(), file.file_crc))
        except BaseException:
            sidecar.abandon()
            file.abandon()
            raise

    @contextmanager
    def _stopping_at_first_error(self) -> Iterator[None]:
        """The ledger must never name a chunk after one that is not there."""
        if self._failed:
            raise StorageError("not written, because an earlier chunk could not be")
        try:
            yield
        except BaseException:
            self._failed = True
            raise


class Storing(Protocol):
    """A chunk on its way: `finish` makes it durable and returns the size of its file.

    file_crc is the crc of a finished file that does not carry its own.
    """

    @property
    def file_crc(self) -> int | None: ...

    def finish(self) -> int: ...
    def abandon(self) -> None: ...


def begin_storing(array: Path, spec: StoreSpec, chunk: int, values: NDArray[Any], crc: int) -> Storing:
    """Write one whole chunk: directly where it is raw, through Zarr where it is encoded."""
    path = chunk_path(array, chunk)
    return _RawChunk(path, values, crc) if spec.is_raw else _EncodedChunk(array, spec, chunk, values)


class _RawChunk(AtomicFile):
    file_crc = None

    def __init__(self, path: Path, values: NDArray[Any], crc: int) -> None:
        super().__init__(path, *chunk_parts(values, crc))


class _EncodedChunk:
    def __init__(self, array: Path, spec: StoreSpec, chunk: int, values: NDArray[Any]) -> None:
        self._path = chunk_path(array, chunk)
        self.file_crc: int | None = None
        stop = (chunk + 1) * spec.chunk_rows
        if open_array(array).shape[0] < stop:
            resize(array, stop)  # Zarr writes inside of the shape only; the split's metadata has the true count
        with storage_errors(self._path):
            open_array(array, "r+")[stop - spec.chunk_rows : stop] = values

    def finish(self) -> int:
        with storage_errors(self._path):
            with self._path.open("rb") as file:
                os.fsync(file.fileno())
                data = file.read()
            sync_directory(self._path.parent)
        self.file_crc = crc32c(data)
        return len(data)

    def abandon(self) -> None:
        """The chunk stays as it is: nothing counts that the ledger does not name."""

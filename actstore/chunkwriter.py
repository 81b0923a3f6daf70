"""Chunks on their way to disk: written on a thread of their own, entered in the ledger in order."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.chunkfile import chunk_path, crc32c, write_chunk
from actstore.files import storage_errors, sync_directory
from actstore.hierarchy import ACTIVATIONS, open_array, resize
from actstore.ledger import Entry, LedgerFile
from actstore.pending import LabelsAndIds, Pending
from actstore.spec import StoreSpec

_BUFFERS = 3  # one being filled, one being written, one waiting


class ChunkWriter:
    """Hands out chunk buffers and writes them, one after the other, while the caller fills the next."""

    def __init__(self, split: Path, spec: StoreSpec, ledger: LedgerFile, pending: Pending) -> None:
        self._array = split / ACTIVATIONS
        self._spec = spec
        self._ledger = ledger
        self._pending = pending
        self._free = [np.zeros((spec.chunk_rows, spec.dim), "<" + spec.dtype) for _ in range(_BUFFERS)]
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="actstore-write")
        self._under_way: deque[tuple[Future[None], NDArray[Any]]] = deque()

    def buffer(self) -> NDArray[Any]:
        """A (chunk_rows, dim) buffer to fill; waits for the disk when all are taken."""
        while not self._free:
            self._settle_one()
        return self._free.pop()

    def submit(self, chunk: int, values: NDArray[Any], used: int, rows: LabelsAndIds) -> None:
        """Queue a chunk, of which the first `used` rows count; its buffer comes back by itself."""
        values[used:] = 0  # padding, so that equal rows give equal files
        self._under_way.append((self._thread.submit(self._write, chunk, values, used, rows), values))

    def drain(self) -> None:
        """Wait until everything queued is durable; raises what a write raised."""
        while self._under_way:
            self._settle_one()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _settle_one(self) -> None:
        future, values = self._under_way.popleft()
        future.result()
        self._free.append(values)

    def _write(self, chunk: int, values: NDArray[Any], used: int, rows: LabelsAndIds) -> None:
        self._pending.write(chunk, rows)
        crc = crc32c(values)
        stored = store_chunk(self._array, self._spec, chunk, values, crc)
        self._ledger.append(Entry(chunk, used, crc, stored))


def store_chunk(array: Path, spec: StoreSpec, chunk: int, values: NDArray[Any], crc: int) -> int:
    """Write one whole chunk durably; returns the size of its file."""
    path = chunk_path(array, chunk)
    if spec.is_raw:
        return write_chunk(path, values, crc)
    stop = (chunk + 1) * spec.chunk_rows
    if open_array(array).shape[0] < stop:
        resize(array, stop)  # Zarr writes inside of the shape only; the split's metadata has the true count
    with storage_errors(path):
        open_array(array, "r+")[stop - spec.chunk_rows : stop] = values
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sync_directory(path.parent)
        return path.stat().st_size

"""Rows of uncompressed chunks by ranges of bytes: of objects in a bucket, and of shards on disk.

A chunk is either its rows one after the other (raw), or a shard of inner chunks, each a few rows followed by
their crc32c. An inner chunk is checked whenever it is read; of raw chunks only whole ones can be.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError
from actstore.layout.chunk_file import by_chunk, chunk_path, decode_units
from actstore.reading.checked_chunks import ChunkChecks
from actstore.reading.rows import FetchedRows
from actstore.spec import StoreSpec
from actstore.storage.atomic_file import CRC_BYTES
from actstore.storage.place import Place


class RangedRows(FetchedRows):
    """Random and sequential access to the rows of a split, fetching little more than what is asked for."""

    def __init__(self, array: Place, spec: StoreSpec, rows: int, checks: ChunkChecks) -> None:
        super().__init__(array, spec, rows, checks)
        inner = spec.shard_inner_rows
        index = 16 * (spec.chunk_rows // inner) + CRC_BYTES if inner else 0  # where each inner chunk lies
        self._file_bytes = spec.chunk_bytes + CRC_BYTES * (spec.chunk_rows // (inner or spec.chunk_rows)) + index
        self._unit = spec.shard_inner_rows or 1  # rows that are read together
        self._stride = self._unit * spec.row_bytes + (CRC_BYTES if spec.shard_inner_rows else 0)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) row ids -> (n, dim)."""
        out = np.empty((len(rows), self.shape[1]), self.dtype)
        wanted, back = np.unique(rows, return_inverse=True)
        chunks = wanted // self._spec.chunk_rows
        edges = np.flatnonzero(np.diff(chunks, prepend=-1, append=-1))
        parts = list(pairwise(edges.tolist()))
        distinct = np.empty_like(out, shape=(len(wanted), self.shape[1]))

        def fetch(part: tuple[int, int]) -> None:
            a, b = part
            self._take_from(int(chunks[a]), wanted[a:b] % self._spec.chunk_rows, distinct[a:b])

        list(self._array.side_by_side(fetch, parts))
        np.take(distinct, back, axis=0, out=out)
        return out

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """(stop - start, dim)."""
        out = np.empty((max(0, stop - start), self.shape[1]), self.dtype)
        for chunk, first, last in by_chunk(start, stop, self._spec.chunk_rows):
            before = chunk * self._spec.chunk_rows
            out[first - start : last - start] = self._read_from(chunk, first - before, last - before)
        return out

    def _take_from(self, chunk: int, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Some rows of a chunk, ascending -> out (n, dim)."""
        units, at = np.unique(rows // self._unit, return_inverse=True)
        starts = units * self._stride
        path = chunk_path(self._array, chunk)
        pieces = self._checked(path, lambda: path.read_ranges(starts.tolist(), (starts + self._stride).tolist()))
        data = np.frombuffer(b"".join(pieces), np.uint8)
        if len(data) != len(units) * self._stride:
            raise DamagedError(f"chunk {path} is {self._what_is_wrong(path)}; run `actstore verify`")
        out[:] = self._rows_of(path, data)[at * self._unit + rows % self._unit]

    def _read_from(self, chunk: int, first: int, last: int) -> NDArray[Any]:
        """Rows first to last of a chunk -> (last - first, dim)."""
        unit = first // self._unit
        start, stop = unit * self._stride, -(-last // self._unit) * self._stride
        path = chunk_path(self._array, chunk)
        used = min(self._spec.chunk_rows, self.shape[0] - chunk * self._spec.chunk_rows)
        if not self._spec.shard_inner_rows and last - first == used:
            return self._read_whole(chunk)[:used]
        data = self._checked(path, lambda: path.read_span(start, stop))
        offset = unit * self._unit
        return self._rows_of(path, data)[first - offset : last - offset]

    def _read_whole(self, chunk: int) -> NDArray[Any]:
        """(chunk_rows, dim) of a raw chunk, against its own crc."""
        path = chunk_path(self._array, chunk)
        data = self._checked(path, lambda: path.read_span(0, self._spec.chunk_bytes + CRC_BYTES))
        return self._rows_of(path, data, self._spec.chunk_bytes)

    def _rows_of(self, path: Place, data: NDArray[np.uint8], checked: int = 0) -> NDArray[Any]:
        """Units of bytes -> (units * unit rows, dim). checked: bytes of a unit that is followed by a crc."""
        if self._spec.shard_inner_rows:
            checked = self._unit * self._spec.row_bytes
        try:
            if checked:
                data = decode_units(data, checked)
            return data.view(self.dtype).reshape(-1, self.shape[1])
        except ValueError as error:
            raise DamagedError(f"chunk {path} is corrupt ({error}); run `actstore verify`") from error

    def _checked(self, path: Place, fetch: Any) -> Any:
        """A file of another size, of a disk where that is asked quickly, is one of another layout."""
        with self._checks.explained():
            try:
                if path.local_path is None or path.size() == self._file_bytes:
                    fetched = fetch()
                    self._checks.require_same_split()
                    return fetched
            except (FileNotFoundError, ValueError) as error:  # ValueError: an empty file cannot be mapped
                raise DamagedError(f"chunk {path} is {self._what_is_wrong(path)}; run `actstore verify`") from error
            raise DamagedError(f"chunk {path} is {self._what_is_wrong(path)}; run `actstore verify`")

    def _what_is_wrong(self, path: Place) -> str:
        try:
            return f"truncated: {path.size()} bytes, expected {self._file_bytes}"
        except FileNotFoundError:
            return "missing"

"""Rows copied out of files or objects; chunks compared with the ledger, each once for as long as a split is open; and
row numbers as callers give them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.errors import DamagedError, InvalidInputError, RowRangeError
from actstore.layout.ledger import (
    LEDGER,
    Entry,
    by_chunk,
    chunk_path,
    committed_entries,
    decode_chunk,
    decode_units,
    decompress,
    index_bytes,
    read_ledger,
    read_lines,
    require_size,
    shard_index,
)
from actstore.layout.metadata import explained, require_same_split
from actstore.spec import SplitSpec, StoreSpec
from actstore.storage.atomic_file import CRC_BYTES, crc32c
from actstore.storage.bucket_client import threads
from actstore.storage.place import Place

Buffer = NDArray[np.float32]
T = TypeVar("T")
_DECODERS = 8  # chunks that are decoded side by side


class ChunkChecks:
    """Which chunks of a split were found to be those that its ledger names.

    committed: what the reader knows of the split; the ledger counts as far as it was written then, and must be the one
    of that content. Without it, for writers, all of the ledger counts.
    """

    def __init__(self, array: Place, spec: StoreSpec, rows: int, committed: SplitSpec | None = None) -> None:
        self.chunk_rows = spec.chunk_rows
        self._array, self._spec, self._rows, self._committed = array, spec, rows, committed
        self._done = np.zeros(-(-rows // spec.chunk_rows), bool)
        self._entries: list[Entry] | None = None
        self._lock = threading.Lock()
        self._stamp = self._look()

    def require_same_split(self) -> None:
        """After a read from a file that is opened anew each time: it was still this split's. On a disk, where looking
        at the split's metadata costs little; it is read only where it was written since."""
        if self._committed is not None and (stamp := self._look()) != self._stamp:
            require_same_split(self._array.parent, self._spec, self._committed)
            self._stamp = stamp

    def _look(self) -> tuple[int, ...]:
        """Tells one version of the split's metadata from another."""
        folder = self._array.local_path
        if folder is None:
            return ()
        try:
            facts = (folder.parent / "zarr.json").stat()
        except OSError:
            return ()
        return facts.st_ino, facts.st_mtime_ns, facts.st_size

    def explained(self) -> AbstractContextManager[None]:
        """Around a read: a split that was replaced is not called damaged."""
        if self._committed is None:
            return nullcontext()
        return explained(self._array.parent, self._spec, self._committed)

    def entries(self) -> list[Entry]:
        """One for every chunk that the reader knows."""
        with self._lock:
            if self._entries is None:
                if self._committed is None:
                    entries = read_ledger(self._array)[0]
                else:
                    entries = committed_entries(self._array, self._spec, self._committed)
                if len(entries) < len(self._done):
                    raise DamagedError(
                        f"{self._array / LEDGER} names {len(entries)} chunks, expected {len(self._done)}; "
                        f"run `actstore verify {self._array.parent.parent}`"
                    )
                self._entries = entries[: len(self._done)]
            return self._entries

    def was_rewritten(self, chunk: int) -> bool:
        """Whether an append has extended the chunk: a file of it from before would pass for sound by itself."""
        if self._committed is None:
            return True
        earlier = self._committed.history[:-1]
        return any(rows // self.chunk_rows == chunk and rows % self.chunk_rows for rows, _ in earlier)

    def require_named(self, chunk: int, said: int, values: NDArray[Any]) -> None:
        """said: the crc32c at the end of a chunk's file, which is not the committed one; values are read only where no
        line of the ledger names it either."""
        if not any(line.crc == said for line in self._lines(chunk)):
            self.compare(chunk, crc32c(values), values)

    def check_file(self, chunk: int) -> None:
        """Read a whole chunk and compare it with the ledger, if that was not done yet."""
        if self.is_done(chunk):
            return
        values = read_chunk(self._array, self._spec, chunk)
        self.compare(chunk, crc32c(values), values)

    def is_done(self, chunk: int) -> bool:
        return bool(self._done[chunk])

    def compare(self, chunk: int, crc: int, values: NDArray[Any]) -> None:
        """values: all rows of the chunk, padding included, whose crc32c is `crc`. An append rewrites the last chunk:
        what is open may be the chunk before it, or after it with a ledger that does not say so yet."""
        with self.explained():
            named = self.entries()[chunk].crc
            if crc != named and not any(
                line.crc in (crc, crc32c(_cut(values, line.rows))) for line in self._lines(chunk)
            ):
                raise DamagedError(
                    f"chunk {chunk} of split {self._array.parent.name!r} is damaged: the crc32c of the rows in "
                    f"{chunk_path(self._array, chunk)} is {crc:08x}, the ledger says {named:08x}; "
                    f"run `actstore verify {self._array.parent.parent} --repair`"
                )
        self._done[chunk] = True

    def _lines(self, chunk: int) -> list[Entry]:
        """All of the ledger that tell of a chunk with the rows that are needed of it; none of another split's ledger,
        which may lie there by now."""
        lines = read_lines(self._array)[0]
        named = {(line.chunk, line.rows, line.crc) for line in lines}
        if any((entry.chunk, entry.rows, entry.crc) not in named for entry in self.entries()):
            return []
        needed = min(self.chunk_rows, self._rows - chunk * self.chunk_rows)
        return [line for line in lines if line.chunk == chunk and line.rows >= needed]


def _cut(values: NDArray[Any], rows: int) -> NDArray[Any]:
    """A chunk as it was when it held so many rows."""
    cut = values.copy()
    cut[rows:] = 0
    return cut


def read_chunk(array: Place, spec: StoreSpec, chunk: int) -> NDArray[Any]:
    """(chunk_rows, dim), each piece checked against its own crc."""
    file = chunk_path(array, chunk)
    with _damage_of(file):
        is_known = spec.is_raw and file.local_path is None  # a bucket is not asked for the size
        return decode_chunk(spec, file.read_span(0, spec.chunk_bytes + CRC_BYTES if is_known else file.size()))


@contextmanager
def _damage_of(file: Place) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        what = f"truncated: {error}" if file.exists() else "missing"
        raise DamagedError(f"chunk {file} is {what}; run `actstore verify`") from None
    except (ValueError, RuntimeError) as error:
        raise DamagedError(f"chunk {file} is corrupt ({error}); run `actstore verify`") from error


class FetchedRows:
    """Random and sequential access to (rows, dim) values in memory of their own: nothing stays mapped.

    Of raw chunks little more is fetched than what is asked for, of shards the inner chunks that it lies in; other
    chunks are decoded as a whole.
    """

    in_memory: NDArray[Any] | None = None  # (rows, dim) where all of them are mapped and the page cache can hold them

    def __init__(self, array: Place, spec: StoreSpec, rows: int, checks: ChunkChecks) -> None:
        self.shape = (rows, spec.dim)
        self.dtype = np.dtype("<" + spec.dtype)
        self.decoded_rows: int | None = spec.chunk_rows  # that are decoded together; None: any range is as good
        self._array, self._spec, self._checks = array, spec, checks
        self._unit = spec.shard_inner_rows or 1  # rows that are fetched together
        self._stride = self._unit * spec.row_bytes + (CRC_BYTES if spec.shard_inner_rows else 0)
        units = spec.chunk_rows // self._unit if spec.shard_inner_rows else 0
        raw_bytes = spec.chunk_bytes + CRC_BYTES * max(1, units) + index_bytes(spec)
        self._file_bytes = raw_bytes if spec.codec == "raw" else None

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) row ids -> (n, dim)."""
        wanted, back = np.unique(rows, return_inverse=True)
        edges = np.flatnonzero(np.diff(wanted // self._spec.chunk_rows, prepend=-1, append=-1))
        distinct = np.empty((len(wanted), self.shape[1]), self.dtype)

        def fetch(part: tuple[int, int]) -> None:
            first, last = part
            chunk = int(wanted[first]) // self._spec.chunk_rows
            distinct[first:last] = self._take_from(chunk, wanted[first:last] - chunk * self._spec.chunk_rows)

        self._fetch_all(fetch, list(pairwise(edges.tolist())))
        return distinct.take(back, axis=0)

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]:
        """As `take`, some at a time where that keeps memory small: which of them, and their values."""
        yield slice(0, len(rows)), self.take(rows)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """(stop - start, dim), which may be a read-only view."""
        out = np.empty((max(0, stop - start), self.shape[1]), self.dtype)

        def fetch(part: tuple[int, int, int]) -> None:
            chunk, first, last = part
            before = chunk * self._spec.chunk_rows
            out[first - start : last - start] = self._read_from(chunk, first - before, last - before)

        self._fetch_all(fetch, list(by_chunk(start, stop, self._spec.chunk_rows)))
        return out

    def _fetch_all(self, fetch: Callable[[T], None], parts: Sequence[T]) -> None:
        """Side by side from a bucket, and where chunks are compressed: on the main thread blosc would use threads of
        its own for each, and wait for them."""
        is_raw = self._spec.codec == "raw"
        list(self._array.map_parallel(fetch, parts) if is_raw else threads(_DECODERS, "decode").map(fetch, parts))

    def scan(self, start: int, stop: int, step: int, into: Buffer | None = None) -> Iterator[NDArray[Any]]:
        """Rows in order, at most `step` at a time, for passes over whole chunks: each is checked on the way, and what
        is wrong with a chunk may be raised after its first rows were handed out.

        into: (step, dim) float32, where rows are converted to; its part with the rows is handed out each time."""
        for _, first, last in by_chunk(start, stop, self._spec.chunk_rows):
            block = self.read(first, last)
            for row in range(0, len(block), step):
                yield as_asked(block[row : row + step], into)

    def check(self, chunks: Iterable[int]) -> None:
        """Refuse damaged chunks; one that was found sound is not looked at again. Pieces with a crc of their own are
        checked whenever they are read; whole chunks are where they have none, or where an append has extended them, so
        that a file from before it would do as well."""
        for chunk in chunks:
            if self._spec.is_raw or self._checks.was_rewritten(chunk):
                self._checks.check_file(chunk)

    def release(self, start: int, stop: int) -> None:
        """These rows are not needed soon; here nothing is held."""

    def _take_from(self, chunk: int, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Some rows of a chunk, ascending -> (n, dim)."""
        if self._is_whole:
            return self._whole(chunk)[rows]
        units, at = np.unique(rows // self._unit, return_inverse=True)
        values: NDArray[Any] = self._units(chunk, units)[at * self._unit + rows % self._unit]
        return values

    def _read_from(self, chunk: int, first: int, last: int) -> NDArray[Any]:
        """Rows first to last of a chunk -> (last - first, dim)."""
        used = min(self._spec.chunk_rows, self.shape[0] - chunk * self._spec.chunk_rows)
        if self._is_whole or (self._spec.is_raw and last - first == used):
            return self._whole(chunk)[first:last]
        start, stop = first // self._unit, -(-last // self._unit)
        return self._units(chunk, range(start, stop))[first - start * self._unit : last - start * self._unit]

    @property
    def _is_whole(self) -> bool:
        return self._spec.codec != "raw" and not self._spec.shard_inner_rows

    def _whole(self, chunk: int) -> NDArray[Any]:
        """(chunk_rows, dim), against its own crc."""
        with self._checks.explained():
            values = read_chunk(self._array, self._spec, chunk)
            self._checks.require_same_split()
            return values

    def _units(self, chunk: int, units: NDArray[np.int64] | range) -> NDArray[Any]:
        """(units * rows of each, dim). A file of another size, of a disk where that is asked quickly, is one of another
        layout."""
        path = chunk_path(self._array, chunk)
        with self._checks.explained():
            with _damage_of(path):
                if path.local_path is not None and self._file_bytes not in (None, path.size()):
                    raise ValueError(f"it has {path.size():,} bytes, expected {self._file_bytes:,}: it is truncated")
                values = self._fetch(path, units)
            self._checks.require_same_split()
            return values

    def _fetch(self, path: Place, units: NDArray[np.int64] | range) -> NDArray[Any]:
        if self._spec.codec != "raw":
            size = path.size()
            begin = size - index_bytes(self._spec)
            if begin < 0:
                raise ValueError(f"it has {size:,} bytes, fewer than its index of {size - begin:,}: it is truncated")
            index = shard_index(self._spec, path.read_span(begin, size))
            spans = [index[unit] for unit in units]
            found = path.read_ranges([start for start, _ in spans], [start + size for start, size in spans])
            return np.concatenate([decompress(self._spec, np.frombuffer(piece, np.uint8)) for piece in found])
        if isinstance(units, range):
            data = path.read_span(units.start * self._stride, units.stop * self._stride)
        else:
            starts = units * self._stride
            data = np.frombuffer(
                b"".join(path.read_ranges(starts.tolist(), (starts + self._stride).tolist())), np.uint8
            )
            require_size(data, len(units) * self._stride)
        if self._spec.shard_inner_rows:
            data = decode_units(data, self._unit * self._spec.row_bytes)
        return data.view(self.dtype).reshape(-1, self.shape[1])


class CheckedRows:
    """Chunks are compared with the ledger before rows are first taken from them."""

    in_memory: NDArray[Any] | None = None  # a look into memory would not be checked

    def __init__(self, rows: Any, chunk_rows: int) -> None:
        self._rows, self._chunk_rows = rows, chunk_rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        self._rows.check(np.unique(rows // self._chunk_rows).tolist())
        return cast(NDArray[Any], self._rows.take(rows))

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]:
        self._rows.check(np.unique(rows // self._chunk_rows).tolist())
        return cast(Iterator[tuple[slice, NDArray[Any]]], self._rows.pieces(rows))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        self._rows.check(range(start // self._chunk_rows, -(-stop // self._chunk_rows)) if stop > start else ())
        return cast(NDArray[Any], self._rows.read(start, stop))


def as_asked(rows: NDArray[Any], into: Buffer | None) -> NDArray[Any]:
    """Rows as they are, or converted in `into`, where that is given."""
    if into is None:
        return rows
    from actstore.compute.tensors import convert_into  # brings torch: who takes rows does not wait for it

    convert_into(into[: len(rows)], rows)
    return into[: len(rows)]


def parse_rows(rows: ArrayLike, count: int) -> NDArray[np.int64]:
    """Integers in any order, negative ones counted from the end as numpy does, or a boolean mask of length `count`."""
    numbers: NDArray[Any] = np.asarray(rows)
    if numbers.dtype == bool:
        if numbers.shape != (count,):
            raise InvalidInputError(f"a row mask must have shape ({count},), got {numbers.shape}")
        return np.flatnonzero(numbers)
    if numbers.size == 0:
        return np.empty(0, np.int64)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise InvalidInputError(
            f"rows must be a one-dimensional list of integers, got shape {numbers.shape}, type {numbers.dtype}"
        )
    parsed = np.ascontiguousarray(numbers, dtype=np.int64)
    low, high = int(parsed.min()), int(parsed.max())
    if low < -count or high >= count:
        wrong = high if high >= count else low
        have = f"rows 0 to {count - 1}, or -{count} to -1 from the end" if count else "no rows"
        raise RowRangeError(f"row {wrong} is out of range: the split has {have}")
    return np.where(parsed < 0, parsed + count, parsed) if low < 0 else parsed

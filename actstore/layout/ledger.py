"""Chunk files, and the ledger of a split: one line per chunk that is safely on disk, and the lock of its writer.

Chunks and shards are laid out here, which is much faster than asking Zarr to; the bytes are the same. The ledger lies
inside the array's own folder, where Zarr readers look for chunks by name and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError
from actstore.spec import SplitSpec, StoreSpec
from actstore.storage.atomic_file import CRC_BYTES, Data, as_bytes, check_checksum, chunk_parts, crc32c, with_checksum
from actstore.storage.locks import OwnedLog
from actstore.storage.place import Place

BLOSC = {"cname": "zstd", "clevel": 3, "shuffle": 2, "blocksize": 0}  # 2: by bits


def chunk_path(array: Place, chunk: int, ndim: int = 2) -> Place:
    """Where Zarr's default key encoding puts chunk number `chunk` along the first axis."""
    path = array / "c" / str(chunk)
    return path / "0" if ndim == 2 else path


def by_chunk(start: int, stop: int, chunk_rows: int) -> Iterator[tuple[int, int, int]]:
    """A range of rows, chunk by chunk: (chunk, first row, row after the last)."""
    while start < stop:
        chunk = start // chunk_rows
        edge = min(stop, (chunk + 1) * chunk_rows)
        yield chunk, start, edge
        start = edge


def encode_chunk(spec: StoreSpec, values: NDArray[Any], crc: int) -> tuple[Data, ...]:
    """(chunk_rows, dim) values whose crc32c is `crc` -> the parts of their file. A Zarr shard has its inner chunks in
    order, then for each of them its offset and size, then the crc32c of those."""
    if spec.is_raw:
        return chunk_parts(values, crc)
    inner = spec.shard_inner_rows or spec.chunk_rows
    pieces = [values[start : start + inner] for start in range(0, len(values), inner)]
    if spec.codec == "blosc":
        from numcodecs.blosc import Blosc

        pieces = list(map(Blosc(**BLOSC).encode, pieces))
    units = b"".join(as_bytes(part).data for piece in pieces for part in chunk_parts(piece, crc32c(piece)))
    if not spec.shard_inner_rows:
        return (units,)
    sizes = np.array([len(as_bytes(piece)) + CRC_BYTES for piece in pieces], "<u8")
    index = np.stack([sizes.cumsum() - sizes, sizes], axis=1)
    return units, *chunk_parts(index, crc32c(index))


def decode_chunk(spec: StoreSpec, data: NDArray[np.uint8]) -> NDArray[Any]:
    """The bytes of a chunk file -> (chunk_rows, dim); ValueError where they are not what was written."""
    inner = spec.shard_inner_rows or spec.chunk_rows
    if spec.codec != "raw":
        spans = shard_index(spec, data) if spec.shard_inner_rows else [(0, len(data))]
        pieces = [decompress(spec, data[start : start + size]) for start, size in spans]
        return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
    whole = spec.chunk_rows // inner * (inner * spec.row_bytes + CRC_BYTES)
    require_size(data, whole, exactly=spec.is_raw)
    units = data[:whole]
    return decode_units(units, inner * spec.row_bytes).view("<" + spec.dtype).reshape(spec.chunk_rows, spec.dim)


def decompress(spec: StoreSpec, data: NDArray[np.uint8]) -> NDArray[Any]:
    """A compressed chunk or inner chunk and its crc32c -> (chunk_rows or shard_inner_rows, dim)."""
    from numcodecs.blosc import decompress as decompress_blosc

    values = np.frombuffer(decompress_blosc(decode_units(data, len(data) - CRC_BYTES)), "<" + spec.dtype)
    return values.reshape(spec.shard_inner_rows or spec.chunk_rows, spec.dim)


def shard_index(spec: StoreSpec, data: NDArray[np.uint8]) -> list[tuple[int, int]]:
    """Offset and size of every inner chunk, from the end of a shard."""
    index = decode_units(data[-index_bytes(spec) :], index_bytes(spec) - CRC_BYTES)
    return [(int(start), int(size)) for start, size in index.view("<u8").reshape(-1, 2)]


def index_bytes(spec: StoreSpec) -> int:
    """Of what says where the inner chunks of a shard lie; 0 where there are none."""
    return 16 * (spec.chunk_rows // spec.shard_inner_rows) + CRC_BYTES if spec.shard_inner_rows else 0


def require_size(data: NDArray[np.uint8], expected: int, exactly: bool = True) -> None:
    """A chunk cut short is said to be so. exactly: nothing follows either."""
    if len(data) < expected or (exactly and len(data) > expected):
        cut = ": it is truncated" if len(data) < expected else ""
        raise ValueError(f"it has {len(data):,} bytes, expected {expected:,}{cut}")


def decode_units(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Pieces of `size` bytes, each followed by its crc32c, which is checked -> the pieces alone, joined."""
    if not len(data):
        raise ValueError("it is empty: it is truncated")
    if len(data) % (size + CRC_BYTES):
        raise ValueError(f"it has {len(data):,} bytes, which is no multiple of {size + CRC_BYTES:,}: it is truncated")
    units = data.reshape(-1, size + CRC_BYTES)
    stored = np.ascontiguousarray(units[:, size:]).view("<u4")[:, 0].tolist()
    for number, unit in enumerate(units):
        computed = crc32c(unit[:size])
        if computed != stored[number]:
            raise ValueError(f"crc32c is {computed:08x}, the chunk says {stored[number]:08x}")
    return units[0, :size] if len(units) == 1 else np.ascontiguousarray(units[:, :size]).reshape(-1)


LEDGER = "ledger.jsonl"
_PLAIN_LINE = re.compile(rb'"chunk": (\d+), "rows": (\d+), "crc": "([0-9a-f]{8})", "bytes": (\d+)')


class Entry(NamedTuple):
    """Chunk number, rows in use, crc32c of its raw values (padding included), size of its file.

    file_crc: crc32c of the whole file where the values are encoded in it; a raw file carries its own.
    """

    chunk: int
    rows: int
    crc: int
    stored: int
    file_crc: int | None = None

    def line(self) -> bytes:
        data = {"chunk": self.chunk, "rows": self.rows, "crc": f"{self.crc:08x}", "bytes": self.stored}
        if self.file_crc is not None:
            data["file_crc"] = f"{self.file_crc:08x}"
        return json.dumps(with_checksum(data)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Self:
        data = check_checksum(json.loads(line))
        file_crc = int(data["file_crc"], 16) if "file_crc" in data else None
        return cls(data["chunk"], data["rows"], int(data["crc"], 16), data["bytes"], file_crc)


def read_ledger(array: Place) -> tuple[list[Entry], int]:
    """The newest entry of every chunk in order, and the length in bytes of the whole lines.

    A last line without its line break is a write that was killed: it does not count.
    """
    lines, length = read_lines(array)
    entries = _newest(lines)
    if [entry.chunk for entry in entries] != list(range(len(entries))):
        raise DamagedError(f"{array / LEDGER} skips a chunk: found {[entry.chunk for entry in entries[:5]]}…")
    return entries, length


def read_lines(array: Place, stop: int | None = None) -> tuple[list[Entry], int]:
    """Every whole line, older states of a chunk included, and their length in bytes. stop: bytes that count."""
    path, data = array / LEDGER, _read(array)[:stop]
    whole = data[: data.rfind(b"\n") + 1]
    entries = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            entries.append(Entry.parse(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{path} line {number} is damaged ({error})") from error
    return entries, len(whole)


def _read(array: Place) -> bytes:
    try:
        return (array / LEDGER).read_bytes()
    except FileNotFoundError:
        return b""


def committed_entries(array: Place, spec: StoreSpec, split: SplitSpec) -> list[Entry]:
    """The newest entry of every chunk as of the commit that `split` describes; refused where the ledger is another one.

    The content hash covers rows and crc of every chunk. So the lines are not parsed with their own checksums, unless
    this fails: 150 of them take 0.2 ms instead of 3.
    """
    lines = _PLAIN_LINE.findall(_read(array)[: split.ledger_bytes])
    entries = _newest(Entry(int(chunk), int(rows), int(crc, 16), int(size)) for chunk, rows, crc, size in lines)
    if content_hash(spec.dtype, spec.dim, entries, split) != split.content:
        entries = _newest(read_lines(array, split.ledger_bytes)[0])
        if content_hash(spec.dtype, spec.dim, entries, split) != split.content:
            raise DamagedError(
                f"{array / LEDGER} is not the one of the rows that {array.parent} says it holds; "
                f"run `actstore verify {array.parent.parent}`, or copy the store again"
            )
    return entries


def _newest(lines: Iterable[Entry]) -> list[Entry]:
    """The last entry of every chunk, in the order of chunks."""
    newest = {entry.chunk: entry for entry in lines}
    return [newest[chunk] for chunk in sorted(newest)]


def content_hash(dtype: str, dim: int, entries: Iterable[Entry], split: SplitSpec) -> str:
    """Names the content of a split: equal for equal rows, labels, ids, columns in any order, and chunking."""
    chunks = [[entry.rows, entry.crc] for entry in entries]
    columns = sorted([column.name, column.kind, column.crc] for column in split.columns)
    facts = [split.labels_crc, split.ids_crc, *([columns] if columns else [])]
    text = json.dumps([dtype, dim, chunks, *facts], separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def open_ledger(array: Place) -> OwnedLog:
    """For writing: as long as it is open, nobody else writes to the split."""
    return (array / LEDGER).open_log()


def has_writer(array: Place) -> bool:
    """Whether a ledger in a bucket ends in a token: somebody writes there, or was killed."""
    return (array / LEDGER).has_log_writer()

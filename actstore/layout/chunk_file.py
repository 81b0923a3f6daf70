"""Chunk files of an array: where they lie, their bytes in each layout of a store, and the rows back from them.

Raw chunks and shards without compression are laid out here, which is much faster than asking Zarr to; the
bytes are the same. Compressed ones are encoded by Zarr.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.spec import StoreSpec
from actstore.storage.atomic_file import CRC_BYTES, Data, chunk_parts, crc32c
from actstore.storage.place import Place


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
    """(chunk_rows, dim) values whose crc32c is `crc` -> the parts of their file."""
    if spec.is_raw:
        return chunk_parts(values, crc)
    if spec.codec == "raw":
        return _encode_shard(values, spec.shard_inner_rows or 1)
    from actstore.layout.zarr_arrays import encode_compressed

    return (encode_compressed(spec, values),)


def decode_chunk(spec: StoreSpec, data: NDArray[np.uint8]) -> NDArray[Any]:
    """The bytes of a chunk file -> (chunk_rows, dim); ValueError where they are not what was written."""
    if spec.codec != "raw":
        from actstore.layout.zarr_arrays import decode_compressed

        return decode_compressed(spec, data)
    inner = spec.shard_inner_rows or spec.chunk_rows
    whole = spec.chunk_rows // inner * (inner * spec.row_bytes + CRC_BYTES)
    require_size(data, whole, exactly=spec.is_raw)
    units = data[:whole]
    return decode_units(units, inner * spec.row_bytes).view("<" + spec.dtype).reshape(spec.chunk_rows, spec.dim)


def require_size(data: NDArray[np.uint8], expected: int, exactly: bool = True) -> None:
    """A chunk cut short is said to be so. exactly: nothing follows either."""
    if len(data) < expected or (exactly and len(data) > expected):
        cut = ": it is truncated" if len(data) < expected else ""
        raise ValueError(f"it has {len(data):,} bytes, expected {expected:,}{cut}")


def decode_units(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Pieces of `size` bytes, each followed by its crc32c, which is checked -> the pieces alone, joined."""
    if len(data) % (size + CRC_BYTES) or not len(data):
        raise ValueError(f"it has {len(data):,} bytes, which is no multiple of {size + CRC_BYTES:,}: it is truncated")
    units = data.reshape(-1, size + CRC_BYTES)
    stored = np.ascontiguousarray(units[:, size:]).view("<u4")[:, 0].tolist()
    for number, unit in enumerate(units):
        computed = crc32c(unit[:size])
        if computed != stored[number]:
            raise ValueError(f"crc32c is {computed:08x}, the chunk says {stored[number]:08x}")
    return units[0, :size] if len(units) == 1 else np.ascontiguousarray(units[:, :size]).reshape(-1)


def _encode_shard(values: NDArray[Any], inner: int) -> tuple[Data, Data]:
    """A Zarr shard: inner chunks in order, then for each of them its offset and size, then the crc32c of those."""
    flat = values.view(np.uint8).reshape(len(values) // inner, -1)  # (inner chunks, bytes)
    count, size = flat.shape
    units = np.empty((count, size + CRC_BYTES), np.uint8)
    units[:, :size] = flat
    units[:, size:].view("<u4")[:, 0] = [crc32c(unit) for unit in flat]
    index = np.empty((count, 2), "<u8")
    index[:, 0] = np.arange(count, dtype=np.uint64) * np.uint64(size + CRC_BYTES)
    index[:, 1] = size + CRC_BYTES
    return units, index.tobytes() + crc32c(index).to_bytes(CRC_BYTES, "little")

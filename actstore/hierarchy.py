"""The Zarr side of a store: groups, arrays and attributes. The only module that imports zarr."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

from actstore.chunkfile import chunk_path
from actstore.errors import DamagedError, NotAStoreError
from actstore.files import storage_errors, write_atomic
from actstore.spec import KEY, Json, SplitSpec, StoreSpec

ACTIVATIONS = "activations"
LABEL_CHUNK = 65_536  # labels and id offsets: 256 and 512 KiB
BYTE_CHUNK = 1 << 20

# name -> (dtype, chunk length): one value per row (labels, offsets) or one byte per id byte
FLAT_ARRAYS: dict[str, tuple[str, int]] = {
    "labels": ("i4", LABEL_CHUNK),
    "path_offsets": ("i8", LABEL_CHUNK),
    "path_bytes": ("u1", BYTE_CHUNK),
}


def create_store(path: Path, spec: StoreSpec) -> None:
    with storage_errors(path):
        zarr.create_group(path, zarr_format=3, attributes={KEY: spec.to_json()})


def create_split(path: Path, spec: StoreSpec, split: SplitSpec) -> None:
    """An empty split: its arrays with no rows yet. The group comes last, so a split exists whole or not."""
    with storage_errors(path):
        ledger = path / ACTIVATIONS / "ledger.jsonl"
        if ledger.exists() and ledger.stat().st_size:
            raise DamagedError(f"{path} holds rows but has lost its zarr.json; restore that file from a backup")
        if not (path / ACTIVATIONS / "zarr.json").exists():
            _create_activations(path / ACTIVATIONS, spec)
        for name, (dtype, chunk) in FLAT_ARRAYS.items():
            create_raw_array(path / name, (0,), dtype, (chunk,))
        zarr.create_group(path, zarr_format=3, attributes={KEY: split.to_json()})


def _create_activations(path: Path, spec: StoreSpec) -> None:
    compressors: list[BytesBytesCodec] = [Crc32cCodec()]
    if spec.codec == "blosc":
        compressors = [BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"), Crc32cCodec()]
    inner = spec.shard_inner_rows
    zarr.create_array(
        path,
        shape=(0, spec.dim),
        dtype=spec.dtype,
        chunks=(inner or spec.chunk_rows, spec.dim),
        shards=(spec.chunk_rows, spec.dim) if inner else None,
        filters=None,
        serializer=BytesCodec(endian="little"),
        compressors=compressors,
        fill_value=float("nan"),  # a reader that ignores a lost chunk sees NaN, never plausible zeros
        dimension_names=("row", "feature"),
        zarr_format=3,
    )


def create_raw_array(
    path: Path,
    shape: tuple[int, ...],
    dtype: str,
    chunks: tuple[int, ...],
    attributes: Mapping[str, Json] | None = None,
) -> zarr.Array[Any]:
    """An array whose chunk files are raw values and a crc32c."""
    return zarr.create_array(
        path,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        filters=None,
        serializer=BytesCodec(endian=None if dtype == "u1" else "little"),
        compressors=[Crc32cCodec()],
        fill_value=float("nan") if dtype[0] == "f" else 0,
        attributes=dict(attributes or {}),
        zarr_format=3,
        overwrite=True,
    )


def read_attributes(path: Path) -> dict[str, Json]:
    """The attributes of a group or array, read straight from its zarr.json."""
    attributes = _read_document(path).get("attributes", {})
    if not isinstance(attributes, dict):
        raise NotAStoreError(f"{path / 'zarr.json'} is damaged: its attributes are {attributes!r}")
    return attributes


def write_attributes(path: Path, attributes: Mapping[str, Json]) -> None:
    """Replace the attributes of a group, durably; a reader sees the old or the new."""
    _write_document(path, {**_read_document(path), "attributes": dict(attributes)})


def resize(path: Path, length: int) -> None:
    """Set the length of the first axis, durably; chunk files are left alone."""
    document = _read_document(path)
    if document["shape"][0] != length:
        _write_document(path, {**document, "shape": [length, *document["shape"][1:]]})


def _read_document(path: Path) -> dict[str, Json]:
    try:
        document = json.loads((path / "zarr.json").read_bytes())
    except FileNotFoundError:
        raise NotAStoreError(f"{path} holds no zarr.json") from None
    except NotADirectoryError:
        raise NotAStoreError(f"{path} is a file; a store is a folder") from None
    except (ValueError, OSError) as error:
        raise NotAStoreError(f"{path / 'zarr.json'} is damaged: {error}") from error
    if not isinstance(document, dict):
        raise NotAStoreError(f"{path / 'zarr.json'} is damaged: expected an object, got {document!r}")
    return document


def _write_document(path: Path, document: Mapping[str, Json]) -> None:
    # Zarr's own writes are atomic, but not flushed to disk.
    write_atomic(path / "zarr.json", json.dumps(document, indent=2, ensure_ascii=False).encode())


def open_array(path: Path, mode: str = "r") -> zarr.Array[Any]:
    try:
        return zarr.open_array(path, mode=mode)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"{path} is not a readable Zarr array: {error}") from error


def read_flat(path: Path, stop: int) -> NDArray[Any]:
    """The first `stop` values of a one-dimensional array, each chunk checked against its crc."""
    array = open_array(path)
    if array.shape[0] < stop:
        raise DamagedError(f"{path} holds {array.shape[0]} values, expected {stop}; run `actstore verify`")
    require_chunks(path, range(-(-stop // array.chunks[0])), ndim=1)
    try:
        return np.asarray(array[:stop])
    except ValueError as error:
        raise DamagedError(f"{path} has a corrupt chunk ({error}); run `actstore verify`") from error


def require_chunks(path: Path, chunks: Iterable[int], ndim: int) -> None:
    """Zarr reads a missing chunk as its fill value; a store must not."""
    for chunk in chunks:
        file = chunk_path(path, chunk, ndim)
        if not file.exists():
            raise DamagedError(f"chunk {file} is missing; run `actstore verify`")


def remove_partial_files(path: Path) -> None:
    """Drop what a killed zarr write leaves behind in a split (zarr writes to `*.partial`, then renames)."""
    for file in path.glob("**/*.partial"):
        if file.is_file():
            file.unlink(missing_ok=True)

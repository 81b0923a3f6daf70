"""What zarr itself makes: new metadata, and compressed chunks. The only module that imports zarr."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
from zarr.core.buffer import Buffer
from zarr.core.metadata import ArrayV3Metadata
from zarr.storage import MemoryStore

from actstore.errors import DamagedError
from actstore.layout.columns import flat_arrays
from actstore.layout.ledger import read_ledger
from actstore.layout.metadata import (
    ACTIVATIONS,
    DIMENSIONS,
    FLAT_ARRAYS,
    RawLayout,
    create_group,
    read_document,
    remove_own,
    write_document,
)
from actstore.spec import KEY, Json, SplitSpec, StoreSpec
from actstore.storage.place import Place

Files = dict[str, Buffer]  # of a Zarr hierarchy in memory


def create_split(path: Place, spec: StoreSpec, split: SplitSpec) -> None:
    """An empty split: its arrays with no rows yet. The group comes last, so a split exists whole or not."""
    if read_ledger(path / ACTIVATIONS)[0]:
        raise DamagedError(f"{path} holds rows but has lost its zarr.json; restore that file from a backup")
    if not (path / ACTIVATIONS / "zarr.json").exists():
        write_document(path / ACTIVATIONS, expected_document(ACTIVATIONS, spec, split))
    for name, layout in FLAT_ARRAYS.items():
        remove_own(path / name, "array")
        create_raw_array(path / name, layout, (0,))
    create_group(path, {KEY: split.to_json()})


def _document(files: Files) -> dict[str, Json]:
    """The metadata that Zarr has made in memory; it goes to its place in a write of our own, durable and whole."""
    document: dict[str, Json] = json.loads(files["zarr.json"].to_bytes())
    return document


def _create_activations(files: Files, spec: StoreSpec, rows: int) -> zarr.Array[Any]:
    blosc = [BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle")] if spec.codec == "blosc" else []
    inner = spec.shard_inner_rows
    return zarr.create_array(
        MemoryStore(files),
        shape=(rows, spec.dim),
        dtype=spec.dtype,
        chunks=(inner or spec.chunk_rows, spec.dim),
        shards=(spec.chunk_rows, spec.dim) if inner else None,
        filters=None,
        serializer=BytesCodec(endian="little"),
        compressors=[*blosc, Crc32cCodec()],
        fill_value=float("nan"),  # a reader that ignores a lost chunk sees NaN, never plausible zeros
        dimension_names=DIMENSIONS[ACTIVATIONS],
        zarr_format=3,
    )


def create_raw_array(path: Place, layout: RawLayout, shape: tuple[int, ...]) -> None:
    """The metadata of an array whose chunk files are raw values and a crc32c."""
    write_document(path, _raw_document(layout, shape))


def _raw_document(layout: RawLayout, shape: tuple[int, ...]) -> dict[str, Json]:
    files: Files = {}
    zarr.create_array(
        MemoryStore(files),
        shape=shape,
        dtype=layout.dtype,
        chunks=layout.chunks,
        filters=None,
        serializer=BytesCodec(endian=None if layout.dtype[1] == "1" else "little"),
        compressors=[Crc32cCodec()],
        fill_value=layout.fill,
        attributes=dict(layout.attributes),
        dimension_names=layout.dimensions,
        zarr_format=3,
    )
    return _document(files)


def expected_document(name: str, spec: StoreSpec, split: SplitSpec) -> dict[str, Json]:
    """The metadata that an array of this split must have: it follows from the store's own."""
    if name == ACTIVATIONS:
        files: Files = {}
        _create_activations(files, spec, split.rows)
        return _document(files)
    layout, length = flat_arrays(split)[name]
    return _raw_document(layout, (length,))


def metadata_difference(path: Place, expected: Mapping[str, Json], growing: bool) -> str | None:
    """What an array's zarr.json says otherwise than expected. growing: it may be longer already."""
    document = read_document(path)
    if "dimension_names" not in document:  # earlier versions named them of activations alone
        expected = {key: value for key, value in expected.items() if key != "dimension_names"}
    if {**document, "attributes": {}} == {**expected, "attributes": {}}:
        return None  # word by word; else they may still mean the same
    try:
        actual, wanted = (ArrayV3Metadata.from_dict(dict(metadata)).to_dict() for metadata in (document, expected))
    except (KeyError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        return f"{path / 'zarr.json'} cannot be read: {type(error).__name__} {error}".splitlines()[0]
    if growing and actual["shape"][0] > wanted["shape"][0]:  # type: ignore[index,operator]
        actual["shape"] = wanted["shape"]
    for key, value in wanted.items():
        if key != "attributes" and json.dumps(actual.get(key), default=str) != json.dumps(value, default=str):
            return f"{path / 'zarr.json'} says {key} {actual.get(key)}, expected {value}"
    return None


def encode_compressed(spec: StoreSpec, values: NDArray[Any]) -> bytes:
    """(chunk_rows, dim) values -> the bytes of their chunk file."""
    files: Files = {}
    _create_activations(files, spec, spec.chunk_rows)[...] = values
    return files["c/0/0"].to_bytes()

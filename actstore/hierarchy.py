"""The Zarr side of a store: groups, arrays and attributes. The only module that imports zarr."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.metadata import ArrayV3Metadata
from zarr.storage import MemoryStore, ObjectStore, StorePath

from actstore.buckets import bucket_of
from actstore.checksum import FIELD, document_checksum
from actstore.chunkfile import CRC_BYTES, chunk_path
from actstore.encoding import decode_units, require_size
from actstore.errors import DamagedError, LockedError, NotAStoreError, StorageError
from actstore.ledger import read_ledger
from actstore.objects import Guard, ObjectPath, Version
from actstore.places import Place, read_files, reading_errors, remove_tree, write_file
from actstore.spec import KEY, Json, SplitSpec, StoreSpec

ACTIVATIONS = "activations"
LABEL_CHUNK = 65_536  # labels and id offsets: 256 and 512 KiB
BYTE_CHUNK = 1 << 20
Files = dict[str, Buffer]  # of a Zarr hierarchy in memory

# name -> (dtype, chunk length): one value per row (labels, offsets) or one byte per id byte
FLAT_ARRAYS: dict[str, tuple[str, int]] = {
    "labels": ("i4", LABEL_CHUNK),
    "path_offsets": ("i8", LABEL_CHUNK),
    "path_bytes": ("u1", BYTE_CHUNK),
}
# name -> what its axes are called: equal names have equal lengths, so that xarray opens a split as one data set
DIMENSIONS: dict[str, tuple[str, ...]] = {
    ACTIVATIONS: ("row", "feature"),
    "labels": ("row",),
    "path_offsets": ("id_bound",),
    "path_bytes": ("id_byte",),
    "class_count": ("class",),
    "class_mean": ("class", "feature"),
    "class_var": ("class", "feature"),
}


def create_store(path: Place, spec: StoreSpec) -> None:
    create_group(path, {KEY: spec.to_json()})


def create_split(path: Place, spec: StoreSpec, split: SplitSpec) -> None:
    """An empty split: its arrays with no rows yet. The group comes last, so a split exists whole or not."""
    if read_ledger(path / ACTIVATIONS)[0]:
        raise DamagedError(f"{path} holds rows but has lost its zarr.json; restore that file from a backup")
    if not (path / ACTIVATIONS / "zarr.json").exists():
        files: Files = {}
        _create_activations(files, spec, 0)
        _write_document(path / ACTIVATIONS, _document(files))
    for name, (dtype, chunk) in FLAT_ARRAYS.items():
        remove_tree(path / name)
        create_raw_array(path / name, name, (0,), dtype, (chunk,))
    create_group(path, {KEY: split.to_json()})


def create_group(path: Place, attributes: Mapping[str, Json], replace: bool = False) -> None:
    files: Files = {}
    zarr.create_group(MemoryStore(files), zarr_format=3, attributes=dict(attributes))
    _write_document(path, _document(files), version=None if replace else {})


def _document(files: Files) -> dict[str, Json]:
    """The metadata that Zarr has made in memory; it goes to its place in a write of our own, durable and whole."""
    document: dict[str, Json] = json.loads(files["zarr.json"].to_bytes())
    return document


def _create_activations(files: Files, spec: StoreSpec, rows: int) -> zarr.Array[Any]:
    compressors: list[BytesBytesCodec] = [Crc32cCodec()]
    if spec.codec == "blosc":
        compressors = [BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle"), Crc32cCodec()]
    inner = spec.shard_inner_rows
    return zarr.create_array(
        MemoryStore(files),
        shape=(rows, spec.dim),
        dtype=spec.dtype,
        chunks=(inner or spec.chunk_rows, spec.dim),
        shards=(spec.chunk_rows, spec.dim) if inner else None,
        filters=None,
        serializer=BytesCodec(endian="little"),
        compressors=compressors,
        fill_value=float("nan"),  # a reader that ignores a lost chunk sees NaN, never plausible zeros
        dimension_names=DIMENSIONS[ACTIVATIONS],
        zarr_format=3,
    )


def create_raw_array(
    path: Place,
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    chunks: tuple[int, ...],
    attributes: Mapping[str, Json] | None = None,
) -> None:
    """The metadata of the array of that name, whose chunk files are raw values and a crc32c. path: where it is now."""
    _write_document(path, _raw_document(name, shape, dtype, chunks, attributes))


def _raw_document(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    chunks: tuple[int, ...],
    attributes: Mapping[str, Json] | None = None,
) -> dict[str, Json]:
    files: Files = {}
    zarr.create_array(
        MemoryStore(files),
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        filters=None,
        serializer=BytesCodec(endian=None if dtype == "u1" else "little"),
        compressors=[Crc32cCodec()],
        fill_value=float("nan") if dtype[0] == "f" else 0,
        attributes=dict(attributes or {}),
        dimension_names=DIMENSIONS[name],
        zarr_format=3,
    )
    return _document(files)


def expected_document(name: str, spec: StoreSpec, split: SplitSpec) -> dict[str, Json]:
    """The metadata that an array of this split must have: it follows from the store's own."""
    if name == ACTIVATIONS:
        files: Files = {}
        _create_activations(files, spec, split.rows)
        return _document(files)
    dtype, chunk = FLAT_ARRAYS[name]
    offsets = split.rows + 1 if split.has_ids else 0
    length = {"labels": split.rows, "path_offsets": offsets, "path_bytes": split.id_bytes}[name]
    return _raw_document(name, (length,), dtype, (chunk,))


def metadata_difference(path: Place, expected: Mapping[str, Json], growing: bool) -> str | None:
    """What an array's zarr.json says otherwise than expected. growing: it may be longer already."""
    document = _read_document(path)
    if "dimension_names" not in document:  # earlier versions named them of activations alone
        expected = {key: value for key, value in expected.items() if key != "dimension_names"}
    try:
        found, wanted = (ArrayV3Metadata.from_dict(dict(one)).to_dict() for one in (document, expected))
    except (KeyError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        return f"{path / 'zarr.json'} cannot be read: {type(error).__name__} {error}".splitlines()[0]
    if growing and found["shape"][0] > wanted["shape"][0]:  # type: ignore[index,operator]
        found["shape"] = wanted["shape"]
    for key, value in wanted.items():
        if key != "attributes" and json.dumps(found.get(key), default=str) != json.dumps(value, default=str):
            return f"{path / 'zarr.json'} says {key} {found.get(key)}, expected {value}"
    return None


def parse_document(text: bytes) -> bytes | None:
    """A zarr.json with its checksum, from the text without it; None where that is no JSON object."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return seal_document(document) if isinstance(document, dict) else None


def flat_length(path: Place) -> int:
    return int(_read_document(path)["shape"][0])


def read_grid(path: Place) -> tuple[int, int]:
    """Rows of a chunk file and the dim of activations, as their own metadata has them."""
    rows, dim = _read_document(path)["chunk_grid"]["configuration"]["chunk_shape"]
    return int(rows), int(dim)


def write_metadata(path: Place, document: Mapping[str, Json]) -> None:
    """Replace the zarr.json of an array."""
    _write_document(path, document)


def read_attributes(path: Place) -> dict[str, Json]:
    """The attributes of a group or array, read straight from its zarr.json."""
    attributes = _read_document(path).get("attributes", {})
    if not isinstance(attributes, dict):
        raise NotAStoreError(f"{path / 'zarr.json'} is damaged: its attributes are {attributes!r}")
    return attributes


def write_attributes(path: Place, attributes: Mapping[str, Json], guard: Guard | None = None) -> None:
    """Replace the attributes of a group, durably; a reader sees the old or the new.

    guard: asked whether this is still ours to do; in a bucket, what was written since then is not replaced.
    """
    document, version = _read_version(path)
    if guard is not None:
        guard()
    _write_document(path, {**document, "attributes": dict(attributes)}, version)


def change_attributes(path: Place, change: Callable[[dict[str, Json]], dict[str, Json]]) -> None:
    """Read, change and write the attributes of a group; in a bucket again, where somebody else did so meanwhile."""
    while True:
        document, version = _read_version(path)
        changed = {**document, "attributes": change(document["attributes"])}
        if changed == document:
            return
        with suppress(LockedError):
            return _write_document(path, changed, version)


def resize(path: Place, length: int) -> None:
    """Set the length of the first axis, durably; chunk files are left alone."""
    document = _read_document(path)
    if document["shape"][0] != length:
        _write_document(path, {**document, "shape": [length, *document["shape"][1:]]})


def _read_document(path: Place) -> dict[str, Json]:
    return _read_version(path)[0]


def _read_version(path: Place) -> tuple[dict[str, Json], Version | None]:
    """The zarr.json of a group or array; of an object also which version it is."""
    file, version = path / "zarr.json", None
    try:
        if isinstance(file, ObjectPath):
            data, version = file.read()
            document = json.loads(bytes(data))
        else:
            document = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise NotAStoreError(f"{path} holds no zarr.json") from None
    except NotADirectoryError:
        raise NotAStoreError(f"{path} is a file; a store is a folder") from None
    except StorageError:
        raise
    except (ValueError, OSError) as error:
        raise NotAStoreError(f"{file} is damaged: {error}") from error
    if not isinstance(document, dict):
        raise NotAStoreError(f"{file} is damaged: expected an object, got {document!r}")
    return _unsealed(document, file), version


def _unsealed(document: dict[str, Json], file: Place) -> dict[str, Json]:
    """Without the checksum among its attributes, which covers all but a copy that other tools may have put in."""
    attributes = document.get("attributes")
    if not isinstance(attributes, dict) or FIELD not in attributes:
        return document
    plain = {**document, "attributes": {key: value for key, value in attributes.items() if key != FIELD}}
    found = document_checksum({key: value for key, value in plain.items() if key != "consolidated_metadata"})
    if found != attributes[FIELD]:
        raise DamagedError(
            f"{file} is damaged: its checksum is {found}, it says {attributes[FIELD]}; "
            "try `actstore verify STORE --repair`"
        )
    return plain


def seal_document(document: Mapping[str, Json]) -> bytes:
    """The text of a zarr.json. Its checksum is that of the same text without the line of the checksum."""
    covered = {key: value for key, value in document.items() if key != "consolidated_metadata"}
    attributes = {**document.get("attributes", {}), FIELD: document_checksum(covered)}
    return json.dumps({**document, "attributes": attributes}, indent=2, ensure_ascii=False).encode()


def _write_document(path: Place, document: Mapping[str, Json], version: Version | None = None) -> None:
    file, text = path / "zarr.json", seal_document({"attributes": {}, **document})
    if isinstance(file, ObjectPath):
        file.put(text, version) if version != {} else file.create(text)
    else:  # Zarr's own writes are atomic, but not flushed to disk
        write_file(file, text)


def open_array(path: Place) -> zarr.Array[Any]:
    where = path if isinstance(path, Path) else StorePath(ObjectStore(bucket_of(path.root)), path.key)
    try:
        with reading_errors(path):
            return zarr.open_array(where, mode="r")
    except StorageError:
        raise
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"{path} is not a readable Zarr array: {error}") from error


def read_flat(path: Place, stop: int) -> NDArray[Any]:
    """The first `stop` values of labels, id offsets or id bytes, each chunk checked against its crc."""
    dtype, chunk = FLAT_ARRAYS[path.name]
    try:
        length = _read_document(path)["shape"][0]
    except NotAStoreError as error:
        raise DamagedError(f"{error}; run `actstore verify`") from error
    except (KeyError, IndexError, TypeError) as error:
        raise DamagedError(f"{path} is not a readable Zarr array: {error}") from error
    if length < stop:
        raise DamagedError(f"{path} holds {length} values, expected {stop}; run `actstore verify`")
    size = chunk * np.dtype(dtype).itemsize
    out = np.empty(-(-stop // chunk) * chunk, "<" + dtype)
    files = [chunk_path(path, number, ndim=1) for number in range(len(out) // chunk)]
    for number, data in enumerate(read_files(files)):
        if data is None:
            raise DamagedError(f"chunk {files[number]} is missing; run `actstore verify`")
        try:
            require_size(data, size + CRC_BYTES)
            out[number * chunk : (number + 1) * chunk] = decode_units(data, size).view("<" + dtype)
        except ValueError as error:
            raise DamagedError(f"chunk {files[number]} is corrupt ({error}); run `actstore verify`") from error
    return out[:stop]


def require_chunks(path: Place, chunks: Iterable[int], ndim: int) -> None:
    """Zarr reads a missing chunk as its fill value; a store must not."""
    for chunk in chunks:
        file = chunk_path(path, chunk, ndim)
        if not file.exists():
            raise DamagedError(f"chunk {file} is missing; run `actstore verify`")


def encode_compressed(spec: StoreSpec, values: NDArray[Any]) -> bytes:
    """(chunk_rows, dim) values -> the bytes of their chunk file."""
    files: Files = {}
    _create_activations(files, spec, spec.chunk_rows)[...] = values
    return files["c/0/0"].to_bytes()


def decode_compressed(spec: StoreSpec, data: NDArray[np.uint8]) -> NDArray[Any]:
    """The bytes of a chunk file -> (chunk_rows, dim)."""
    files: Files = {}
    array = _create_activations(files, spec, spec.chunk_rows)
    files["c/0/0"] = default_buffer_prototype().buffer.from_bytes(data.tobytes())
    return np.asarray(array[...])

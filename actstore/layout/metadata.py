"""The metadata of a store: zarr.json files of groups and arrays, read and written without zarr; whether a split on disk
is still the one that was opened; and which files are a store's own: what else lies there is never removed."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from actstore.errors import (
    ActstoreError,
    DamagedError,
    LockedError,
    NoMetadataError,
    NotAStoreError,
    ReplacedError,
    StorageError,
)
from actstore.layout.ledger import LEDGER, chunk_path, decode_units, require_size
from actstore.spec import KEY, LAYOUT, Json, SplitSpec, StoreSpec
from actstore.storage.atomic_file import CRC_BYTES, FIELD, as_utf8, document_checksum
from actstore.storage.object_path import EnsureOwner, ObjectPath, Version
from actstore.storage.place import FolderPath, Place, read_files

ACTIVATIONS = "activations"
LABEL_CHUNK = 65_536  # labels and id offsets: 256 and 512 KiB
BYTE_CHUNK = 1 << 20

KIND = "column"  # the attribute of an array that says which type of column it holds
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


@dataclass(frozen=True)
class RawLayout:
    """An array of raw chunk files: type, shape of a chunk, the names of its axes, what a lost chunk reads as."""

    dtype: str
    chunks: tuple[int, ...]
    dimensions: tuple[str, ...]
    fill: Json = 0
    attributes: Mapping[str, Json] = field(default_factory=dict)


# name -> one value per row (labels, offsets) or one byte per id byte
FLAT_ARRAYS: dict[str, RawLayout] = {
    "labels": RawLayout("i4", (LABEL_CHUNK,), DIMENSIONS["labels"]),
    "path_offsets": RawLayout("i8", (LABEL_CHUNK,), DIMENSIONS["path_offsets"]),
    "path_bytes": RawLayout("u1", (BYTE_CHUNK,), DIMENSIONS["path_bytes"]),
}


def read_layout(path: Place) -> tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]:
    """Shape, shape of a chunk file, and type of an array, as its own metadata has them."""
    document = read_document(path)
    try:
        shape, chunks = document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"]
        if not 0 < len(shape) == len(chunks):
            raise ValueError(f"its shape is {shape} and that of its chunks {chunks}")
        return tuple(map(int, shape)), tuple(map(int, chunks)), np.dtype(document["data_type"])
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{path} is not a readable Zarr array: {error}") from error


def read_attributes(path: Place) -> dict[str, Json]:
    """The attributes of a group or array, read straight from its zarr.json."""
    attributes = read_document(path).get("attributes", {})
    if not isinstance(attributes, dict):
        raise NotAStoreError(f"{path / 'zarr.json'} is damaged: its attributes are {attributes!r}")
    return attributes


def read_store_spec(store: Place) -> StoreSpec:
    """What the metadata of a store says now."""
    return StoreSpec.from_json(read_attributes(store).get(KEY, {}), str(store))


def stores_inside(folder: FolderPath) -> list[FolderPath]:
    """The folders in one that are stores; splits, which a store without its zarr.json still has, are none."""
    found = []
    for file in sorted(folder.glob("*/zarr.json")):
        with suppress(ActstoreError):
            read_store_spec(file.parent)
            found.append(file.parent)
    return found


def require_free(path: Place) -> None:
    if path.has_entries(besides="zarr.json.part"):  # left by a creation that was killed, and written anew
        raise NotAStoreError(f"{path} exists already; choose another path")


def read_split_spec(split: Place) -> SplitSpec:
    """What is committed of a split now."""
    return SplitSpec.from_json(read_attributes(split).get(KEY, {}), str(split))


def write_attributes(path: Place, attributes: Mapping[str, Json], ensure_owner: EnsureOwner | None = None) -> None:
    """Replace the attributes of a group, durably; a reader sees the old or the new.

    ensure_owner: asked whether this is still ours to do; in a bucket, what was written since then is not replaced.
    """
    document, version = _read_version(path)
    if ensure_owner is not None:
        ensure_owner()
    write_document(path, {**document, "attributes": dict(attributes)}, version)


def change_attributes(path: Place, change: Callable[[dict[str, Json]], dict[str, Json]]) -> None:
    """Read, change and write the attributes of a group; in a bucket again, where somebody else did so meanwhile."""
    while True:
        document, version = _read_version(path)
        changed = {**document, "attributes": change(document["attributes"])}
        if changed == document:
            return
        with suppress(LockedError):
            return write_document(path, changed, version)


def resize(path: Place, length: int) -> None:
    """Set the length of the first axis, durably; chunk files are left alone."""
    document = read_document(path)
    if document["shape"][0] != length:
        write_document(path, {**document, "shape": [length, *document["shape"][1:]]})


def read_document(path: Place) -> dict[str, Json]:
    return _read_version(path)[0]


def _read_version(path: Place) -> tuple[dict[str, Json], Version | None]:
    """The zarr.json of a group or array; of an object also which version it is."""
    file = path / "zarr.json"
    try:
        data, version = file.read_version()
        document = json.loads(bytes(data))
    except FileNotFoundError:
        raise NoMetadataError(f"{path} holds no zarr.json: no store, or a damaged one") from None
    except NotADirectoryError:
        raise NotAStoreError(f"{path} is a file; a store is a folder") from None
    except StorageError:
        raise
    except (ValueError, OSError) as error:
        raise NotAStoreError(f"{file} is damaged: {error}") from error
    if not isinstance(document, dict):
        raise NotAStoreError(f"{file} is damaged: expected an object, got {document!r}")
    attributes = document.get("attributes")
    if isinstance(attributes, dict) and FIELD in attributes:
        document["attributes"] = {key: value for key, value in attributes.items() if key != FIELD}
        if (checksum := _checksum(document)) != attributes[FIELD]:
            raise DamagedError(
                f"{file} is damaged: its checksum is {checksum}, it says {attributes[FIELD]}; "
                "try `actstore verify STORE --repair`"
            )
    return document, version


def _checksum(document: Mapping[str, Json]) -> str:
    """Of the text of a zarr.json without its own line, and without a copy that other tools may have put in."""
    return document_checksum({key: value for key, value in document.items() if key != "consolidated_metadata"})


def seal_document(document: Mapping[str, Json]) -> bytes:
    """The text of a zarr.json."""
    attributes = {**document.get("attributes", {}), FIELD: _checksum(document)}
    return as_utf8(json.dumps({**document, "attributes": attributes}, indent=2, ensure_ascii=False))


def write_document(path: Place, document: Mapping[str, Json], version: Version | None = None) -> None:
    (path / "zarr.json").put(seal_document({"attributes": {}, **document}), version)


def raw_codecs(dtype: str) -> list[Json]:
    """Of chunk files that are raw values and a crc32c."""
    endian = {} if dtype[1] == "1" else {"configuration": {"endian": "little"}}
    return [{"name": "bytes", **endian}, {"name": "crc32c"}]


def array_document(layout: RawLayout, shape: tuple[int, ...], codecs: list[Json] | None = None) -> dict[str, Json]:
    """The metadata of an array as zarr itself writes it, by default of one with raw chunks."""
    return {
        "shape": list(shape),
        "data_type": np.dtype(layout.dtype).name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(layout.chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN" if layout.fill != layout.fill else layout.fill,
        "codecs": raw_codecs(layout.dtype) if codecs is None else codecs,
        "attributes": dict(layout.attributes),
        "dimension_names": list(layout.dimensions),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def create_raw_array(path: Place, layout: RawLayout, shape: tuple[int, ...]) -> None:
    write_document(path, array_document(layout, shape))


def create_group(path: Place, attributes: Mapping[str, Json], replace: bool = False) -> None:
    """replace: whether one may be there; else one that came meanwhile is refused."""
    document = {"attributes": dict(attributes), "zarr_format": 3, "node_type": "group"}
    write_document(path, document, version=None if replace else {})


def read_flat(path: Place, stop: int, layout: RawLayout | None = None) -> NDArray[Any]:
    """The first `stop` values of labels, ids or a column, each chunk checked against its crc."""
    layout = layout or FLAT_ARRAYS[path.name]
    dtype, (chunk,) = layout.dtype, layout.chunks
    if not stop:
        return np.empty(0, "<" + dtype)
    try:
        length = read_layout(path)[0][0]
    except NotAStoreError as error:
        raise DamagedError(f"{error}; run `actstore verify`") from error
    if length < stop:
        raise DamagedError(f"{path} holds {length} values, expected {stop}; run `actstore verify`")
    out = np.empty(-(-stop // chunk) * chunk, "<" + dtype)
    files = [chunk_path(path, number, ndim=1) for number in range(len(out) // chunk)]
    for number, data in enumerate(read_files(files)):
        out[number * chunk : (number + 1) * chunk] = _decoded(files[number], data, layout)
    return out[:stop]


def read_flat_chunk(path: Place, number: int, layout: RawLayout) -> NDArray[Any]:
    """One whole chunk of such an array, padding included."""
    file = chunk_path(path, number, ndim=1)
    (data,) = read_files([file])
    return _decoded(file, data, layout)


def _decoded(file: Place, data: NDArray[np.uint8] | None, layout: RawLayout) -> NDArray[Any]:
    if data is None:
        raise DamagedError(f"chunk {file} is missing; run `actstore verify`")
    size = math.prod(layout.chunks) * np.dtype(layout.dtype).itemsize
    try:
        require_size(data, size + CRC_BYTES)
        return decode_units(data, size).view("<" + layout.dtype)
    except ValueError as error:
        raise DamagedError(f"chunk {file} is corrupt ({error}); run `actstore verify`") from error


def read_one_chunk(path: Place) -> NDArray[Any]:
    """An array of any shape that lies in a single chunk."""
    shape, chunks, dtype = read_layout(path)
    if 0 in shape:
        return np.empty(shape, dtype)
    if shape != chunks:
        raise DamagedError(f"{path} is expected to have one chunk of shape {shape}, got {chunks}")
    file = chunk_path(path, 0, len(shape))
    (data,) = read_files([file])
    return _decoded(file, data, RawLayout(dtype.str[1:], chunks, ())).reshape(shape)


@contextmanager
def explained(split: Place, spec: StoreSpec, opened: SplitSpec) -> Iterator[None]:
    """Around a read: what does not fit because another store lies there by now is said to be replaced."""
    try:
        yield
    except DamagedError as error:
        try:
            require_same_split(split, spec, opened)
        except ReplacedError as replaced:
            raise replaced from error
        raise


def require_same_split(split: Place, spec: StoreSpec, opened: SplitSpec) -> None:
    """Refuse one that has another layout now, or rows that do not begin with those that were opened. Appends change
    neither, and damaged metadata says nothing."""
    try:
        store, now = read_store_spec(split.parent), read_split_spec(split)
        own = store.of_split(now)
        is_other = not covers(now, opened) or any(getattr(own, key) != getattr(spec, key) for key in LAYOUT)
    except NoMetadataError:  # which was there: the store is gone, if only until another takes its place
        is_other = True
    except ActstoreError:
        is_other = False
    if is_other:
        raise ReplacedError(f"{split} was replaced or removed since it was opened; open it again")


def require_same_store(where: Place, held: StoreSpec, now: StoreSpec) -> None:
    """Whether the store there is the one that a caller has opened: classes may have been added, and chunks may have
    another size; rows of another kind, or labels that mean something else, make it another."""
    if (now.dim, now.dtype) != (held.dim, held.dtype) or now.classes[: len(held.classes)] != held.classes:
        raise ReplacedError(f"{where} was replaced since it was opened; open it again")


def covers(now: SplitSpec, earlier: SplitSpec) -> bool:
    """Whether the rows of one are the first of the other, or all."""
    return earlier.content == now.content or earlier.content in {content for _, content in now.history}


AnyKind = TypeVar("AnyKind", FolderPath, ObjectPath)
_METADATA = r"zarr\.json(\.part)?"
_UNFINISHED = re.compile(rf"\.({'|'.join(DIMENSIONS)})\.[^/]*")  # statistics that a killed process was writing
# what a folder of the store is -> the names of its own files in it
_FILES = {
    "store": re.compile(_METADATA),
    "split": re.compile(_METADATA),
    "array": re.compile(rf"{_METADATA}|{re.escape(LEDGER)}"),
    "c": re.compile(r"[0-9]+(\.part)?"),
    "pending": re.compile(r"(source\.json|(rows|open)-[0-9]+\.npz)(\.part)?"),
}


def strangers(store: AnyKind) -> list[AnyKind]:
    """What others have put into a store: files, and whole folders where nothing in them is the store's."""
    return [store / name for name, _, is_own in _entries(store, "store") if not is_own]


def remove_own(top: Place, kind: str = "store") -> list[Place]:
    """Remove a store's own files and folders, as far as these are empty then; returns what others have put there.

    kind: "split", "array" or "pending" where it is that part of one.
    """
    entries = list(_entries(top, kind))
    top.remove_below([(name, is_folder) for name, is_folder, is_own in entries if is_own])
    return [top / name for name, _, is_own in entries if not is_own]


def _entries(top: Place, kind: str) -> Iterator[tuple[str, bool, bool]]:
    """What lies below a folder: its path from there, whether it is a folder, and whether it is the store's own. What
    is in a folder comes before the folder itself, whose path at last is ""."""
    inside: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for path, is_folder in sorted(top.contents()):
        inside[path.rpartition("/")[0]].append((path, is_folder))

    def visit(folder: str, kind: str) -> Iterator[tuple[str, bool, bool]]:
        for path, is_folder in inside[folder]:
            name = path.rpartition("/")[2]
            below = _kind_of(top / path, name, kind) if is_folder else None
            if below is not None:
                yield from visit(path, below)
            else:
                yield path, is_folder, not is_folder and _FILES[kind].fullmatch(name) is not None
        yield folder, True, True

    return visit("", kind)


def _kind_of(folder: Place, name: str, above: str) -> str | None:
    """What a folder in one of a kind is; None for one of others."""
    if above == "store":
        is_split = _has_attribute(folder, KEY) or (folder / ACTIVATIONS / LEDGER).exists()
        return "split" if is_split else None
    if above == "split":
        is_known = name in DIMENSIONS or _UNFINISHED.fullmatch(name) is not None
        return "array" if is_known or _has_attribute(folder, KIND) else None
    if above == "array":
        return name if name in ("c", "pending") else None
    return above if above == "c" and name.isdecimal() else None


def _has_attribute(folder: Place, name: str) -> bool:
    with suppress(ActstoreError, OSError):
        return name in read_attributes(folder)
    return False

"""The metadata of arrays, as zarr itself would write it. The only module that imports zarr, where others did."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from actstore.errors import DamagedError
from actstore.layout.columns import flat_arrays
from actstore.layout.ledger import BLOSC, read_ledger
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


def create_raw_array(path: Place, layout: RawLayout, shape: tuple[int, ...]) -> None:
    """The metadata of an array whose chunk files are raw values and a crc32c."""
    write_document(path, _raw_document(layout, shape))


def _raw_document(layout: RawLayout, shape: tuple[int, ...]) -> dict[str, Json]:
    fill = "NaN" if layout.fill != layout.fill else layout.fill
    return _document(layout, shape, [*_bytes_codecs(layout.dtype), {"name": "crc32c"}], fill)


def _bytes_codecs(dtype: str) -> list[Json]:
    return [{"name": "bytes"} if dtype[1] == "1" else {"name": "bytes", "configuration": {"endian": "little"}}]


def _document(layout: RawLayout, shape: tuple[int, ...], codecs: list[Json], fill: Json) -> dict[str, Json]:
    """As zarr itself writes it."""
    return {
        "shape": list(shape),
        "data_type": np.dtype(layout.dtype).name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(layout.chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": dict(layout.attributes),
        "dimension_names": list(layout.dimensions),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def expected_document(name: str, spec: StoreSpec, split: SplitSpec) -> dict[str, Json]:
    """The metadata that an array of this split must have: it follows from the store's own."""
    if name != ACTIVATIONS:
        layout, length = flat_arrays(split)[name]
        return _raw_document(layout, (length,))
    crc = {"name": "crc32c"}
    codecs = _bytes_codecs(spec.dtype)
    if spec.codec == "blosc":
        settings = {"typesize": int(spec.dtype[1]), **BLOSC, "shuffle": "bitshuffle"}
        codecs.append({"name": "blosc", "configuration": settings})
    codecs.append(crc)
    if spec.shard_inner_rows:
        inner = {"chunk_shape": [spec.shard_inner_rows, spec.dim], "codecs": codecs}
        index = {"index_codecs": [*_bytes_codecs("u8"), crc], "index_location": "end"}
        codecs = [{"name": "sharding_indexed", "configuration": {**inner, **index}}]
    # a reader that ignores a lost chunk sees NaN, never plausible zeros
    layout = RawLayout(spec.dtype, (spec.chunk_rows, spec.dim), DIMENSIONS[ACTIVATIONS])
    return _document(layout, (split.rows, spec.dim), codecs, "NaN")


def metadata_difference(path: Place, expected: Mapping[str, Json], growing: bool) -> str | None:
    """What an array's zarr.json says otherwise than expected. growing: it may be longer already."""
    document = read_document(path)
    if {**document, "attributes": {}} == {**expected, "attributes": {}}:
        return None  # word by word; else they may still mean the same
    from zarr.core.metadata import ArrayV3Metadata  # zarr takes a second to import

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

"""Damaged metadata put right again: a flipped bit found by its checksum, a split described anew from what it holds."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from actstore.errors import ActstoreError, DamagedError, LockedError
from actstore.layout.columns import column_arrays, read_column
from actstore.layout.ledger import content_hash, has_writer, read_ledger
from actstore.layout.metadata import (
    ACTIVATIONS,
    flat_length,
    ids_crc,
    parse_document,
    read_attributes,
    read_flat,
    read_grid,
    read_ids,
    read_store_spec,
)
from actstore.layout.zarr_arrays import create_group
from actstore.spec import KEY, ColumnKind, ColumnSpec, SplitSpec, StoreSpec
from actstore.storage.atomic_file import crc32c
from actstore.storage.checksum import FIELD
from actstore.storage.place import Place, write_file
from actstore.writing.locked_split import locked

_LINE = re.compile(rb',\n    "' + FIELD.encode() + rb'": "([0-9a-f]{8})"')
_MOST_BYTES = 1 << 20  # a megabyte is tried bit by bit in some minutes


def restore_groups(path: Place) -> list[tuple[str, str]]:
    """(file, what was done) for each damaged zarr.json of the store and its splits. Nothing else is touched."""
    outcomes = []
    if not (path / "zarr.json").exists():
        return []  # no store: opening it says so
    if not _is_sound(path):
        with path.changing():
            said = _restore_store(path)
        outcomes += [] if said is None else [(str(path / "zarr.json"), said)]
    spec = read_store_spec(path)
    for entry in path.children():
        if (entry / ACTIVATIONS).has_entries() and not _is_sound(entry):
            said = _restore_locked(path, entry, spec)
            outcomes += [] if said is None else [(str(entry / "zarr.json"), said)]
    return outcomes


def _restore_store(path: Place) -> str | None:
    if _is_sound(path):  # by another process, meanwhile
        return None
    if _mend_bit(path):
        return "repaired: one bit of it was flipped"
    raise DamagedError(
        f"{path / 'zarr.json'} is damaged beyond repair: the class names and the origin of the rows are kept nowhere "
        "else; restore that file from a backup"
    )


def _restore_locked(store: Place, path: Place, spec: StoreSpec) -> str | None:
    if has_writer(path / ACTIVATIONS):
        return f"left: {path} is being written to, or was when its writer was killed"
    try:
        with locked(store, path.name):
            return _restore_split(path, spec)
    except LockedError as error:
        return f"left: {error}"


def _restore_split(path: Place, spec: StoreSpec) -> str | None:
    if _is_sound(path):
        return None
    if _mend_bit(path):
        return "repaired: one bit of it was flipped"
    try:
        described = _describe_again(path, spec)
    except (ActstoreError, ValueError) as error:
        return f"left: {error}"
    create_group(path, {KEY: described.to_json()}, replace=True)
    return (
        f"written anew from the ledger and the arrays: {described.rows} rows; where they came from is lost with "
        "the old one, so damaged chunks can no longer be read again from their source"
    )


def _is_sound(path: Place) -> bool:
    try:
        return KEY in read_attributes(path)
    except ActstoreError:
        return False


def _mend_bit(path: Place) -> bool:
    """Find the one bit whose flip gives the checksum back. Several thousand are tried, and a crc32c has four thousand
    million values: a wrong one is not found by chance."""
    file = path / "zarr.json"
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return False
    line = _LINE.search(data)
    if line is None or len(data) > _MOST_BYTES:
        return False
    wanted = int(line[1], 16)
    text = np.frombuffer(data[: line.start()] + data[line.end() :], np.uint8).copy()
    for place in range(len(text)):
        for bit in range(8):
            text[place] ^= 1 << bit
            if crc32c(text) == wanted and (mended := parse_document(text.tobytes())) is not None:
                write_file(file, mended)
                return True
            text[place] ^= 1 << bit
    return False


def _describe_again(path: Place, store: StoreSpec) -> SplitSpec:
    """What a finished split says of itself, but for its sources and its history."""
    if (path / ACTIVATIONS / "pending").has_entries():
        raise DamagedError("a build or an append was under way; restore the file from a backup")
    entries, length = read_ledger(path / ACTIVATIONS)
    rows = sum(entry.rows for entry in entries)
    chunk_rows, dim = read_grid(path / ACTIVATIONS)
    own = {} if dim == store.dim else {"dim": dim, "chunk_rows": chunk_rows}
    labels_crc = crc32c(read_flat(path / "labels", rows).astype("<i4"))
    id_bytes, has_ids = flat_length(path / "path_bytes"), flat_length(path / "path_offsets") > 0
    names_crc = ids_crc(read_ids(path, rows, id_bytes)) if has_ids else 0
    columns = tuple(_describe_column(path, name, kind, rows) for name, kind in _columns_of(path).items())
    content = content_hash(store.dtype, dim, entries, labels_crc, names_crc, columns)
    return SplitSpec(
        rows, True, content, labels_crc, names_crc, has_ids, id_bytes, length, ((rows, content),),
        ({"kind": "unknown", "rows": [0, rows]},), **own, columns=columns,
    )  # fmt: skip


def _columns_of(path: Place) -> dict[str, ColumnKind]:
    return {name.partition(".")[0]: kind for name, kind in column_arrays(path).items()}


def _describe_column(path: Place, name: str, kind: ColumnKind, rows: int) -> ColumnSpec:
    size = flat_length(path / f"{name}.bytes") if kind == "text" else 0
    column = ColumnSpec(name, kind, text_bytes=size)
    return replace(column, crc=read_column(path, column, rows).extend_crc(0))

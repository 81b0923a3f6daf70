"""Verify a store, and mend what was found: metadata from its copies, the ledger and the arrays; the rows of bad
chunks, and only those, once more from their source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from actstore.audit.outcome import FILE, folder_of
from actstore.compute.tensors import convert_into
from actstore.errors import ActstoreError, DamagedError, InvalidInputError, LockedError
from actstore.extraction.forward import reopen_images
from actstore.layout.columns import (
    column_arrays,
    encode_ids,
    expected_document,
    extend_crc,
    facts_of,
    flat_arrays,
    read_arrays,
)
from actstore.layout.ledger import content_hash, has_writer, read_ledger
from actstore.layout.metadata import (
    ACTIVATIONS,
    create_group,
    read_attributes,
    read_layout,
    read_split_spec,
    read_store_spec,
    remove_own,
    write_document,
)
from actstore.progress import bar
from actstore.search.index_files import remove
from actstore.spec import KEY, ColumnKind, ColumnSpec, Json, SplitSpec, StoreSpec
from actstore.split import Split
from actstore.statistics import NAMES as STATISTICS
from actstore.storage.atomic_file import crc32c
from actstore.storage.locks import OwnedLog
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, open
from actstore.tables.filling import check_table
from actstore.tables.importing import ImportRequest, read_request
from actstore.tables.row_source import SyntheticSpec, Table
from actstore.upkeep.copies import reopen_selected
from actstore.upkeep.verify import AUDIT, SEARCH_FILES, Fault, lasting_faults, readable_splits, verify_store
from actstore.writing.chunk_writer import begin_storing, describe
from actstore.writing.commit import describe_facts, locked, write_facts
from actstore.writing.row_checks import RowMetadata, join_facts, parse_columns, parse_labels

if TYPE_CHECKING:
    from actstore.compute.cluster import Cluster


def restore_groups(path: Place) -> list[tuple[str, str]]:
    """(file, what was done) for each damaged zarr.json of the store and its splits. Nothing else is touched."""
    outcomes = []
    if not (path / "zarr.json").exists():
        return []  # no store: opening it says so
    if not _is_sound(path):
        raise DamagedError(
            f"{path / 'zarr.json'} is damaged beyond repair: the class names and the origin of the rows are kept "
            "nowhere else; restore that file from a backup"
        )
    spec = read_store_spec(path)
    for entry in path.children():
        if (entry / ACTIVATIONS).has_entries() and not _is_sound(entry):
            try:
                said = _restore_split(path, entry, spec)
            except (ActstoreError, ValueError) as error:
                said = f"left: {error}"
            outcomes += [] if said is None else [(str(entry / "zarr.json"), said)]
    return outcomes


def _restore_split(store: Place, path: Place, spec: StoreSpec) -> str | None:
    if has_writer(path / ACTIVATIONS):
        return f"left: {path} is being written to, or was when its writer was killed"
    with locked(store, path.name):
        if _is_sound(path):
            return None
        described = _describe_again(path, spec)
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


def _describe_again(path: Place, store: StoreSpec) -> SplitSpec:
    """What a finished split says of itself, but for its sources and its history."""
    if (path / ACTIVATIONS / "pending").has_entries():
        raise DamagedError("a build or an append was under way; restore the file from a backup")
    entries, length = read_ledger(path / ACTIVATIONS)
    rows = sum(entry.rows for entry in entries)
    _, (chunk_rows, dim), _ = read_layout(path / ACTIVATIONS)

    def length_of(name: str) -> int:
        return read_layout(path / name)[0][0]

    kinds = {name.partition(".")[0]: kind for name, kind in column_arrays(path).items()}
    sizes = {name: length_of(f"{name}.bytes") if kind == "text" else 0 for name, kind in kinds.items()}
    own: Json = {} if dim == store.dim else {"dim": dim, "chunk_rows": chunk_rows}
    found = SplitSpec(
        rows, True, has_ids=length_of("path_offsets") > 0, id_bytes=length_of("path_bytes"), ledger_bytes=length,
        sources=({"kind": "unknown", "rows": [0, rows]},), **own,
        columns=tuple(ColumnSpec(name, kind, text_bytes=sizes[name]) for name, kind in kinds.items()),
    )  # fmt: skip
    crcs = {name: extend_crc(0, read_arrays(path, fact.arrays), fact.end) for name, fact in facts_of(found).items()}
    columns = tuple(replace(column, crc=crcs[column.name]) for column in found.columns)
    found = replace(found, labels_crc=crcs["labels"], ids_crc=crcs["ids"], columns=columns)
    content = content_hash(store.dtype, dim, entries, found)
    return replace(found, content=content, history=((rows, content),))


@dataclass(frozen=True)
class Verification:
    """What `verify` found and repaired.

    Attributes:
        store: where the store lies.
        rows: how many rows were checked.
        faults: what was wrong at first.
        restored: metadata files that were restored, each with what was done.
        repairs: each fault with what was done, or why nothing was.
        remaining: faults that are left.
        incomplete: names of splits whose build has not finished.
    """

    store: str
    rows: int
    faults: Sequence[Fault]
    restored: Sequence[tuple[str, str]]
    repairs: Sequence[tuple[Fault, str]]
    remaining: Sequence[Fault]
    incomplete: Sequence[str]


def verify(
    store: AnyPlace, *, repair: bool = False, progress: bool | None = None, cluster: Cluster | None = None
) -> Verification:
    """Check every chunk of a store, its metadata, and the norms and indexes kept beside it.

    Args:
        store: the store to check.
        repair: mend what can be mended; bad chunks are read again from where their rows came from.
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.
        cluster: the workers of this cluster check the chunks.

    Returns:
        What was found: `faults` at first, `repairs` (each fault, and what was done or why not), and the `remaining`
        faults.

    Examples:
        >>> actstore.verify("animals.zarr").faults
        []
    """
    place = parse_place(store)
    restored = restore_groups(place) if repair else []
    opened = open(place)
    splits, _ = readable_splits(opened)
    rows = sum(split.rows for split in splits.values())
    with bar("verify", rows, "rows", progress) as shown:
        faults = verify_store(opened, shown.update, cluster)
    repairs = repair_faults(opened, faults) if repair and faults else []
    remaining = verify_store(opened) if repair and faults else faults
    incomplete = [name for name, split in splits.items() if not split.complete]
    return Verification(str(place), rows, faults, restored, repairs, remaining, incomplete)


def repair_faults(store: ActivationStore, faults: list[Fault]) -> list[tuple[Fault, str]]:
    """Repair each fault that is still there once its split is locked; returns (fault, what was done or why not)."""
    outcomes = []
    for name in [*readable_splits(store)[0]]:
        mine = [fault for fault in faults if fault.split == name]
        if mine:
            where = store.path / name
            if has_writer(where / ACTIVATIONS):
                raise LockedError(f"{where} is being written to, or was when its writer was killed; finish that first")
            with locked(store.path, name) as lock:
                split = read_split_spec(where)
                fresh = ActivationStore(store.path, read_store_spec(store.path))
                # what is derived and lies beside the store is made again when it is missing
                beside = [fault for fault in mine if fault.array == AUDIT or fault.array.startswith(SEARCH_FILES)]
                found = [*lasting_faults(where, mine), *beside]
                outcomes += [(fault, _repair_one(fresh, name, split, fault, lock)) for fault in found]
    return outcomes


def _repair_one(store: ActivationStore, name: str, split: SplitSpec, fault: Fault, lock: OwnedLog) -> str:
    path = store.path / name
    try:
        if fault.kind == "unreadable":
            return "left: it may be sound; make it readable, and verify again"
        if fault.kind == "non-finite":
            return "left: the rows were written like this; build the split again from a clean source"
        if fault.array in STATISTICS:
            with store.path.changing():  # as when they are kept
                remove_own(path / fault.array, "array")
            return "removed: statistics are computed again when asked for"
        if fault.array.startswith(SEARCH_FILES):
            remove(Split(store.path, name, store.spec, split), fault.array.removeprefix(SEARCH_FILES))
            return "removed: norms are computed again when asked for; build an index again with `actstore index`"
        if fault.array == AUDIT:
            (folder_of(store.path) / FILE).unlink(missing_ok=True)
            return "removed: make it again with `actstore audit`"
        if fault.kind == "metadata" and fault.array in (ACTIVATIONS, *flat_arrays(split)):
            write_document(path / fault.array, expected_document(fault.array, store.spec.of_split(split), split))
            return "repaired from the metadata of its split"
        if fault.kind == "metadata":
            return "left: no source can restore it"
        if fault.array == ACTIVATIONS:
            _rewrite_chunk(store, path, split, fault.chunk, lock)
        else:
            _rewrite_facts(store, path, split, lock)
    except (ActstoreError, OSError, ValueError) as error:
        return f"left: {error}"
    return "repaired from its source"


def _rewrite_chunk(store: ActivationStore, path: Place, split: SplitSpec, chunk: int, lock: OwnedLog) -> None:
    spec = store.spec.of_split(split)
    entry = read_ledger(path / ACTIVATIONS)[0][chunk]
    values = np.zeros((spec.chunk_rows, spec.dim), "<" + spec.dtype)
    start, filled = chunk * spec.chunk_rows, 0
    without_columns = replace(split, columns=())  # reading those of images takes its time
    for table, first, last in _tables(without_columns, start, start + entry.rows):
        check_table(replace(table, columns={}), path.name, spec.dim)
        for block in table.activations.blocks(first, last):
            convert_into(values[filled : filled + len(block)], block)
            filled += len(block)
    crc = crc32c(values)
    if crc != entry.crc or filled != entry.rows:
        raise InvalidInputError("its source now holds other rows than those once imported; build the split again")
    begin_storing(path / ACTIVATIONS, spec, chunk, values, crc, lock)[0].finish()


def _rewrite_facts(store: ActivationStore, path: Place, split: SplitSpec, lock: OwnedLog) -> None:
    label_of = {name: label for label, name in enumerate(store.classes)}
    kinds = {column.name: column.kind for column in split.columns}
    parts = []
    for table, first, last in _tables(split, 0, split.rows):
        labels = None if table.labels is None else table.labels[first:last]
        ids = None if table.ids is None else encode_ids(table.ids[first:last])
        own = {name: column.part(first, last) for name, column in table.columns.items() if name in kinds}
        columns = parse_columns(own, last - first, kinds, str(path))
        parts.append(RowMetadata(parse_labels(labels, last - first, label_of, first), ids, columns))
    facts = join_facts(parts, kinds)
    described = describe_facts(SplitSpec(), facts)
    same = (described.labels_crc, described.ids_crc) == (split.labels_crc, split.ids_crc)
    if not same or set(described.columns) != set(split.columns):
        raise InvalidInputError("its source now holds other labels, ids or columns than those once imported")
    write_facts(path, SplitSpec(), [facts], lock.require_own)


def _tables(split: SplitSpec, start: int, stop: int) -> Iterator[tuple[Table, int, int]]:
    """The sources of a range of rows, each with the range of its own rows."""
    for source in split.sources:
        first, last = source["rows"]
        low, high = max(start, first), min(stop, last)
        if low < high:
            kinds = {column.name: column.kind for column in split.columns}
            yield reopen(source, kinds), low - first, high - first


def reopen(source: Mapping[str, Json], kinds: Mapping[str, ColumnKind]) -> Table:
    """The table a split was once filled from; kinds: of its columns."""
    match source.get("kind"):
        case "file":
            return _reopen_file(source, kinds)
        case "synthetic":
            fields = {key: value for key, value in source.items() if key not in ("kind", "rows", "count")}
            return SyntheticSpec(rows=source["count"], **fields).table()
        case "images":
            return reopen_images(source, with_columns=bool(kinds))
        case "select":
            return reopen_selected(source)
    raise InvalidInputError(f"its rows came from {describe(source)}, which cannot be read again")


def _reopen_file(source: Mapping[str, Json], kinds: Mapping[str, ColumnKind]) -> Table:
    def path_of(key: str) -> Path | None:
        return Path(source[key]["path"]) if key in source else None

    request = ImportRequest(
        Path(source["path"]), source["array"], source["split"], path_of("labels"), path_of("ids"), path_of("classes"),
        path_of("columns"), tuple(source.get("column", ())),
    )  # fmt: skip
    tables, _ = read_request(request, kinds)
    if source["split"] not in tables:
        raise InvalidInputError(f"{source['path']} no longer holds split {source['split']!r}")
    return tables[source["split"]]

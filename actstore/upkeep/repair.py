"""Mend what verify found: read the rows of bad chunks again from their source, and only those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np

from actstore.audit.kept import FILE, folder_of
from actstore.compute.tensors import convert_into
from actstore.errors import ActstoreError, InvalidInputError, LockedError
from actstore.extraction.rebuild import reopen_images
from actstore.layout.columns import flat_arrays
from actstore.layout.ledger import has_writer, read_ledger
from actstore.layout.metadata import ACTIVATIONS, read_split_spec, read_store_spec, write_document
from actstore.layout.own_files import remove_array
from actstore.layout.texts import encode_ids
from actstore.layout.zarr_arrays import expected_document
from actstore.search.kept_files import remove
from actstore.spec import ColumnKind, Json, SplitSpec
from actstore.split import Split
from actstore.statistics.class_statistics import NAMES as STATISTICS
from actstore.storage.atomic_file import crc32c
from actstore.storage.owned_log import OwnedLog
from actstore.storage.place import Place
from actstore.store import ActivationStore
from actstore.tables.importing import ImportRequest, check_table, read_request
from actstore.tables.row_source import Table
from actstore.tables.synthetic import SyntheticSpec
from actstore.upkeep.select import KIND as SELECTED
from actstore.upkeep.select import reopen_selected
from actstore.upkeep.verify import AUDIT, SEARCH_FILES, Fault, lasting_faults, readable_splits
from actstore.writing.chunk_writer import begin_storing
from actstore.writing.column_checks import parse_columns
from actstore.writing.commit import describe_facts, write_facts
from actstore.writing.locked_split import locked
from actstore.writing.pending_rows import describe
from actstore.writing.row_checks import parse_labels
from actstore.writing.row_facts import RowFacts


def repair(store: ActivationStore, faults: list[Fault]) -> list[tuple[Fault, str]]:
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
                found = [*lasting_faults(where, mine), *(fault for fault in mine if _lies_beside(fault))]
                outcomes += [(fault, _repair_one(fresh, name, split, fault, lock)) for fault in found]
    return outcomes


def _lies_beside(fault: Fault) -> bool:
    """Whether it is of what is derived, and is made again when it is missing."""
    return fault.array == AUDIT or fault.array.startswith(SEARCH_FILES)


def _repair_one(store: ActivationStore, name: str, split: SplitSpec, fault: Fault, lock: OwnedLog) -> str:
    path = store.path / name
    try:
        if fault.kind == "unreadable":
            return "left: it may be sound; make it readable, and verify again"
        if fault.kind == "non-finite":
            return "left: the rows were written like this; build the split again from a clean source"
        if fault.array in STATISTICS:
            remove_array(path / fault.array)
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
    for table, first, last in _tables(split, start, start + entry.rows):
        check_table(replace(table, columns={}), path.name, spec.dim)  # reading those of images takes its time
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
        parts.append(RowFacts(parse_labels(labels, last - first, label_of, first), ids, columns))
    described = reduce(describe_facts, parts, SplitSpec())
    same = (described.labels_crc, described.ids_crc) == (split.labels_crc, split.ids_crc)
    if not same or set(described.columns) != set(split.columns):
        raise InvalidInputError("its source now holds other labels, ids or columns than those once imported")
    write_facts(path, SplitSpec(), parts, lock.require_own)


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
    opener = _OPENERS.get(source.get("kind", ""))
    if opener is None:
        raise InvalidInputError(f"its rows came from {describe(source)}, which cannot be read again")
    return opener(source, kinds)


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


def _reopen_synthetic(source: Mapping[str, Json], kinds: Mapping[str, ColumnKind]) -> Table:
    fields = {key: value for key, value in source.items() if key not in ("kind", "rows", "count")}
    return SyntheticSpec(rows=source["count"], **fields).table()


_OPENERS: dict[str, Callable[[Mapping[str, Json], Mapping[str, ColumnKind]], Table]] = {
    "file": _reopen_file,
    "synthetic": _reopen_synthetic,
    "images": lambda source, _: reopen_images(source),
    SELECTED: lambda source, _: reopen_selected(source),
}

"""The end of a build or append: labels, ids and columns into their arrays, then the metadata in one rename."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from actstore.errors import DamagedError
from actstore.layout.columns import Column, array_layouts, array_lengths, describe_column
from actstore.layout.flat_array import FlatAppender
from actstore.layout.image_ids import offsets_of
from actstore.layout.ledger import Entry, content_hash, read_ledger
from actstore.layout.metadata import ACTIVATIONS, resize, write_attributes
from actstore.layout.texts import Texts
from actstore.layout.zarr_arrays import create_flat
from actstore.spec import KEY, ColumnSpec, Json, SplitSpec, StoreSpec
from actstore.storage.crc import extend_crc32c
from actstore.storage.object_path import Guard
from actstore.storage.owned_log import OwnedLog
from actstore.storage.place import Place
from actstore.writing.pending_rows import Pending
from actstore.writing.row_facts import RowFacts


def commit(
    split: Place,
    spec: StoreSpec,
    before: SplitSpec,
    expected: int,
    pending: Pending,
    ledger: OwnedLog,
    sources: Sequence[Mapping[str, Json]],
) -> SplitSpec:
    """Make the `expected` rows, every one of which the ledger must name, part of the split; sources: of all of them."""
    entries, _ = read_ledger(split / ACTIVATIONS)
    rows = sum(entry.rows for entry in entries)
    if rows != expected:
        raise DamagedError(f"the ledger of {split} names {rows} rows, {expected} were written; build the split again")
    if rows == before.rows and before.complete:  # an append of no rows changes nothing
        ledger.require_own()
        pending.remove()
        ledger.settle()
        return before
    parts = _pending_rows(pending, entries, before.rows, spec.chunk_rows)
    try:
        after = write_facts(split, before, parts, ledger.require_own)
    except FileNotFoundError as error:
        ledger.require_own()  # if it is not, they went with the build that another process has begun
        raise DamagedError(f"{error}, so the build cannot be finished; discard it with --restart") from error
    resize(split / ACTIVATIONS, rows)
    content = content_hash(spec.dtype, spec.dim, entries, after.labels_crc, after.ids_crc, after.columns)
    after = replace(
        after,
        rows=rows,
        complete=True,
        content=content,
        ledger_bytes=ledger.size(),
        history=(*before.history, (rows, content)) if content != before.content else before.history,
        sources=tuple(sources),
    )
    write_attributes(split, {KEY: after.to_json()}, guard=ledger.require_own)
    ledger.require_own()  # the next build may have begun
    pending.remove()
    ledger.settle()
    return after


def _pending_rows(pending: Pending, entries: list[Entry], committed: int, chunk_rows: int) -> Iterator[RowFacts]:
    for entry in entries:
        if entry.chunk * chunk_rows + entry.rows > committed:
            yield pending.read(entry.chunk)


def write_facts(split: Place, before: SplitSpec, parts: Iterable[RowFacts], guard: Guard) -> SplitSpec:
    """Append labels, ids and columns after the committed ones; returns the spec with what describes them updated."""
    labels = FlatAppender(split, "labels", before.rows, guard)
    offsets = FlatAppender(split, "path_offsets", before.rows + 1 if before.has_ids else 0, guard)
    data = FlatAppender(split, "path_bytes", before.id_bytes, guard)
    columns = {column.name: ColumnAppender(split, column, before.rows, guard) for column in before.columns}
    state = before
    for part in parts:
        labels.append(part.labels)
        if part.ids:
            ends = offsets_of(part.ids) + state.id_bytes
            offsets.append(ends if not state.has_ids else ends[1:])
            data.append(np.frombuffer(b"".join(part.ids), np.uint8))
        after = describe_facts(state, part)
        for column in after.columns:
            if column.name not in columns:  # rows before those with the first value have none
                new = columns[column.name] = ColumnAppender(split, replace(column, crc=0, text_bytes=0), 0, guard)
                new.append(Column.nothing(column.kind, state.rows))
            columns[column.name].append(part.column(column.name, column.kind))
        state = after
    for array in (labels, offsets, data):
        array.close()
    for column_arrays in columns.values():
        column_arrays.close()
    return state


def describe_facts(before: SplitSpec, part: RowFacts) -> SplitSpec:
    """The checksums and sizes after one more part; rows that came without a column have no value of it."""
    known = {column.name: column for column in before.columns}
    for name, values in part.columns.items():
        if name not in known:
            nothing = Column.nothing(values.kind, before.rows)
            known[name] = describe_column(ColumnSpec(name, values.kind), nothing)
    columns = tuple(describe_column(one, part.column(name, one.kind)) for name, one in known.items())
    labels_crc = extend_crc32c(before.labels_crc, part.labels.astype("<i4"))
    after = replace(before, rows=before.rows + len(part), labels_crc=labels_crc, columns=columns)
    if not part.ids:
        return after
    lines = b"\n".join(part.ids) + b"\n"  # ids hold no line break, so this tells them apart
    id_bytes = before.id_bytes + len(lines) - len(part.ids)
    return replace(after, has_ids=True, id_bytes=id_bytes, ids_crc=extend_crc32c(before.ids_crc, lines))


class ColumnAppender:
    """Extends the arrays of a column after its first `rows` rows; makes them where there are none."""

    def __init__(self, split: Place, column: ColumnSpec, rows: int, guard: Guard) -> None:
        layouts, lengths = array_layouts(column), array_lengths(column, rows)
        if not rows:
            guard()
            for name, layout in layouts.items():
                create_flat(split / name, layout)
        self._bytes = column.text_bytes
        self._arrays = [
            FlatAppender(split, name, lengths[name] if rows else 0, guard, layout) for name, layout in layouts.items()
        ]
        if column.kind == "text" and not rows:
            self._arrays[0].append(np.zeros(1, np.int64))  # where the first text begins

    def append(self, values: Column) -> None:
        if isinstance(values.stored, Texts):
            offsets, data = self._arrays
            offsets.append(values.stored.offsets[1:] + self._bytes)
            data.append(values.stored.data)
            self._bytes += len(values.stored.data)
        else:
            self._arrays[0].append(values.stored)

    def close(self) -> None:
        for array in self._arrays:
            array.close()

"""Where a build or append begins and ends. It begins with a split that only one process changes, where what an
interrupted one has left is continued, refused or discarded; it ends with labels, ids and columns in their arrays, then
the metadata in one rename."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, IncompleteError, LockedError
from actstore.layout.columns import (
    ID_END,
    Arrays,
    Column,
    Texts,
    arrays_of,
    create_split,
    extend_crc,
    facts_of,
    read_fact,
    uncommitted_columns,
)
from actstore.layout.ledger import chunk_path, committed_entries, content_hash, open_ledger, read_ledger
from actstore.layout.metadata import (
    ACTIVATIONS,
    RawLayout,
    create_raw_array,
    read_flat_chunk,
    read_split_spec,
    read_store_spec,
    remove_own,
    require_same_store,
    resize,
    write_attributes,
)
from actstore.reading.mapped_rows import open_rows
from actstore.spec import KEY, ColumnSpec, Json, SplitSpec, StoreSpec
from actstore.storage.atomic_file import crc32c
from actstore.storage.locks import OwnedLog
from actstore.storage.object_path import EnsureOwner
from actstore.storage.place import Place, write_chunk
from actstore.writing.chunk_writer import OpenRows, Pending, begin_storing
from actstore.writing.row_checks import RowMetadata, join_facts

_BATCH_ROWS = 1 << 17  # whose labels, ids and columns are held at a time


@contextmanager
def locked(store: Place, name: str) -> Iterator[OwnedLog]:
    """Keep writers out of a split that is there, and the store from being replaced before its ledger is locked."""
    with store.changing():
        ledger = open_ledger(store / name / ACTIVATIONS)
    with closing(ledger):
        yield ledger


def lock_split(store: Place, held: StoreSpec, name: str, new: SplitSpec) -> tuple[OwnedLog, StoreSpec, SplitSpec]:
    """The ledger, and store and split as they are under its lock; a split that is not there is made like `new`.

    held: what the caller knows of the store. Classes may have been added since, and rows are written in the layout that
    the store has now; a store of other rows is refused. The store is locked meanwhile: it cannot be replaced between.
    """
    split = store / name
    with store.changing():
        read_store_spec(store)  # nothing is made where there is no store any more
        ledger = open_ledger(split / ACTIVATIONS)
        try:
            spec = read_store_spec(store)
            require_same_store(store, held, spec)
            if not (split / "zarr.json").exists():
                if new.dim is not None:
                    new = replace(new, chunk_rows=spec.whole_pieces(new.chunk_rows))
                create_split(split, spec.of_split(new), new)
            return ledger, spec, read_split_spec(split)
        except BaseException:
            ledger.close()
            raise


def require_sound(split: Place, spec: StoreSpec, committed: SplitSpec) -> None:
    """Refuse to extend what is not what was committed: damage must never get a checksum of its own."""
    if not committed.complete:
        return
    try:
        committed_entries(split / ACTIVATIONS, spec, committed)
        for fact in facts_of(committed).values():
            read_fact(split, fact)
    except DamagedError as error:
        raise DamagedError(
            f"nothing was written, since {split} is damaged: {error}; mend it with "
            f"`actstore verify {split.parent} --repair` first"
        ) from error


def find_position(
    split: Place, spec: StoreSpec, committed: SplitSpec, ledger: OwnedLog, pending: Pending,
    source: Mapping[str, Json] | None, resume: bool, restart: bool,
) -> tuple[int, OpenRows | None]:  # fmt: skip
    """How many rows the chunks on disk hold, and the rows of the open chunk that were kept beside them."""
    array = split / ACTIVATIONS
    whole = read_ledger(array)[1]
    ledger.truncate(whole)  # drop half a line
    if pending.path.has_entries() and pending.is_left_over(committed, whole):
        pending.remove()  # killed between commit and cleaning up
    if pending.exists() and restart:
        _discard(split, spec, committed, ledger, pending)
    elif pending.exists():
        pending.require_source(source)
    if not pending.exists():
        pending.remove()  # of a build whose removal was killed
        pending.begin(source)
    durable = sum(entry.rows for entry in read_ledger(array)[0])
    if durable < committed.rows:
        raise DamagedError(f"the ledger of {split} names {durable} rows, expected {committed.rows}")
    kept = pending.kept(durable, spec)
    # others are of chunks that never got there: once as many rows are on disk, they would pass for those that follow
    pending.remove_kept(besides=None if kept is None else durable)
    end = durable + (0 if kept is None else len(kept[0]))
    if end > committed.rows and source is None and not resume:
        raise IncompleteError(
            f"{split} holds {end - committed.rows} rows of an interrupted build; go on with row {end} and "
            "resume=True, or drop them with restart=True"
        )
    return durable, kept


def sound_rows(array: Place, spec: StoreSpec, chunk: int, stop: int) -> NDArray[Any]:
    """Rows of a chunk that is to be written again: damage must not get a checksum of its own."""
    rows = open_rows(array, spec, stop)
    rows.check([chunk])
    return rows.read(chunk * spec.chunk_rows, stop)


def drop_uncommitted(split: Place, spec: StoreSpec, committed: SplitSpec, ledger: OwnedLog, pending: Pending) -> None:
    """Leave nothing of rows that were refused: of a new split nothing at all, else what was committed."""
    ledger.require_own()
    if committed.complete:
        _discard(split, spec, committed, ledger, pending)
    else:
        (split / "zarr.json").unlink()  # first: without it there is no split
        remove_own(split, "split")


def _discard(split: Place, spec: StoreSpec, committed: SplitSpec, ledger: OwnedLog, pending: Pending) -> None:
    """Back to what was committed: cut the last chunk, remove later ones, forget pending rows."""
    array, rows = split / ACTIVATIONS, committed.rows
    for chunk in range(-(-rows // spec.chunk_rows), len(read_ledger(array)[0]) + 2):
        with suppress(FileNotFoundError):
            chunk_path(array, chunk).unlink()
    if rows % spec.chunk_rows:
        chunk = rows // spec.chunk_rows
        values = np.zeros((spec.chunk_rows, spec.dim), "<" + spec.dtype)
        values[: rows % spec.chunk_rows] = sound_rows(array, spec, chunk, rows)
        begin_storing(array, spec, chunk, values, crc32c(values), ledger)[0].finish()
    ledger.truncate(committed.ledger_bytes)
    for name in uncommitted_columns(split, committed):
        remove_own(split / name, "array")
    pending.remove()


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
    parts = (pending.read(entry.chunk) for entry in entries if entry.chunk * spec.chunk_rows + entry.rows > before.rows)
    try:
        after = write_facts(split, before, parts, ledger.require_own)
    except FileNotFoundError as error:
        ledger.require_own()  # if it is not, they went with the build that another process has begun
        raise DamagedError(
            f"{error}, so the build cannot be finished; discard it with restart=True (--restart)"
        ) from error
    resize(split / ACTIVATIONS, rows)
    content = content_hash(spec.dtype, spec.dim, entries, after)
    after = replace(
        after,
        rows=rows,
        complete=True,
        content=content,
        ledger_bytes=ledger.size(),
        history=(*before.history, (rows, content)) if content != before.content else before.history,
        sources=tuple(sources),
    )
    ledger.require_own()
    pending.remove_kept()  # before it is declared: what is left then would be taken for rows that follow
    write_attributes(split, {KEY: after.to_json()}, ensure_owner=ledger.require_own)
    with suppress(LockedError):  # the next build may have begun, and tidies up; these rows are committed
        ledger.require_own()
        pending.remove()
        ledger.settle()
    return after


def write_facts(split: Place, before: SplitSpec, parts: Iterable[RowMetadata], ensure_owner: EnsureOwner) -> SplitSpec:
    """Append labels, ids and columns after the committed ones; returns the spec with what describes them updated."""
    state = before
    for some in _batches(parts):
        kinds = {column.name: column.kind for column in state.columns}
        kinds |= {name: column.kind for part in some for name, column in part.columns.items()}
        part = join_facts(some, kinds)
        arrays = {name: fact.arrays for name, fact in facts_of(state).items()}
        for name, kind in kinds.items():
            if name not in arrays:
                arrays[name] = _begin_column(split, ColumnSpec(name, kind), state.rows, ensure_owner)
            _append_values(split, arrays[name], part.columns[name].stored, ensure_owner)
        _append_values(split, arrays["labels"], part.labels, ensure_owner)
        _append_values(split, arrays["ids"], part.ids, ensure_owner)
        state = describe_facts(state, part)
    return state


def _batches(parts: Iterable[RowMetadata]) -> Iterator[list[RowMetadata]]:
    """As many at a time as fit memory well; one batch at least, so that arrays of no rows get their length, too."""
    batch, rows = [], 0
    for part in parts:
        batch.append(part)
        rows += len(part)
        if rows >= _BATCH_ROWS:
            yield batch
            batch, rows = [], 0
    yield batch


def _begin_column(split: Place, column: ColumnSpec, rows: int, ensure_owner: EnsureOwner) -> Arrays:
    """The arrays of a new column: rows before those with the first value have none."""
    ensure_owner()
    empty = {name: (layout, 0) for name, (layout, _) in arrays_of(column, 0).items()}
    for name, (layout, _) in empty.items():
        create_raw_array(split / name, layout, (0,))
    _append_values(split, empty, Column.nothing(column.kind, rows).stored, ensure_owner)
    return arrays_of(column, rows)


def describe_facts(before: SplitSpec, part: RowMetadata) -> SplitSpec:
    """The checksums and sizes after one more part; rows that came without a column have no value of it."""

    def extended(column: ColumnSpec, values: Column) -> ColumnSpec:
        size = len(values.stored.data) if isinstance(values.stored, Texts) else 0
        return replace(column, crc=extend_crc(column.crc, values.stored), text_bytes=column.text_bytes + size)

    known = {column.name: column for column in before.columns}
    for name, values in part.columns.items():
        if name not in known:
            known[name] = extended(ColumnSpec(name, values.kind), Column.nothing(values.kind, before.rows))
    columns = tuple(extended(one, part.column(name, one.kind)) for name, one in known.items())
    labels_crc = extend_crc(before.labels_crc, part.labels.astype("<i4"))
    after = replace(before, rows=before.rows + len(part), labels_crc=labels_crc, columns=columns)
    if not part.ids:
        return after
    names_crc, id_bytes = extend_crc(before.ids_crc, part.ids, ID_END), before.id_bytes + len(part.ids.data)
    return replace(after, has_ids=True, id_bytes=id_bytes, ids_crc=names_crc)


def _append_values(
    split: Place, arrays: Arrays, values: NDArray[Any] | Texts | None, ensure_owner: EnsureOwner
) -> None:
    """Extend the arrays of labels, ids or a column after their committed values."""
    pieces: list[NDArray[Any]]
    if isinstance(values, Texts):
        (_, bounds), (_, size) = arrays.values()
        # the first bound is where the first text begins
        pieces = [values.offsets[1 if bounds else 0 :] + size, values.data]
    else:
        pieces = [np.empty(0)] * len(arrays) if values is None else [values]
    for (name, (layout, length)), piece in zip(arrays.items(), pieces, strict=True):
        append_flat(split / name, layout, length, piece, ensure_owner)


def append_flat(path: Place, layout: RawLayout, length: int, values: NDArray[Any], ensure_owner: EnsureOwner) -> None:
    """Write values after the first `length` of an array, chunk by chunk, and set its length.

    Committed values never change their place, so a reader that knows the old length is not disturbed.
    """
    (chunk,) = layout.chunks
    number, filled = divmod(length, chunk)
    while len(values):
        whole = np.zeros(chunk, "<" + layout.dtype)
        if filled:
            whole[:filled] = read_flat_chunk(path, number, layout)[:filled]
        part, values = values[: chunk - filled], values[chunk - filled :]
        whole[filled : filled + len(part)] = part
        write_chunk(chunk_path(path, number, ndim=1), whole, ensure_owner)
        length, number, filled = length + len(part), number + 1, 0
    resize(path, length)

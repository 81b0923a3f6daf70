"""The end of a build or append: labels and ids into their arrays, then the metadata in one rename."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from actstore.errors import DamagedError
from actstore.layout.flat_array import FlatAppender
from actstore.layout.image_ids import offsets_of
from actstore.layout.ledger import Entry, content_hash, read_ledger
from actstore.layout.metadata import ACTIVATIONS, resize, write_attributes
from actstore.spec import KEY, Json, SplitSpec, StoreSpec
from actstore.storage.crc import extend_crc32c
from actstore.storage.object_path import Guard
from actstore.storage.owned_log import OwnedLog
from actstore.storage.place import Place
from actstore.writing.pending_rows import LabelsAndIds, Pending


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
        after = write_labels_and_ids(split, before, parts, ledger.require_own)
    except FileNotFoundError as error:
        ledger.require_own()  # if it is not, they went with the build that another process has begun
        raise DamagedError(f"{error}, so the build cannot be finished; discard it with --restart") from error
    resize(split / ACTIVATIONS, rows)
    content = content_hash(spec.dtype, spec.dim, entries, after.labels_crc, after.ids_crc)
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


def _pending_rows(pending: Pending, entries: list[Entry], committed: int, chunk_rows: int) -> Iterator[LabelsAndIds]:
    for entry in entries:
        if entry.chunk * chunk_rows + entry.rows > committed:
            yield pending.read(entry.chunk)


def write_labels_and_ids(split: Place, before: SplitSpec, parts: Iterable[LabelsAndIds], guard: Guard) -> SplitSpec:
    """Append labels and ids after the committed ones; returns the spec with what describes them updated."""
    labels = FlatAppender(split, "labels", before.rows, guard)
    offsets = FlatAppender(split, "path_offsets", before.rows + 1 if before.has_ids else 0, guard)
    data = FlatAppender(split, "path_bytes", before.id_bytes, guard)
    state = before
    for part in parts:
        labels.append(part.labels)
        if part.ids:
            ends = offsets_of(part.ids) + state.id_bytes
            offsets.append(ends if not state.has_ids else ends[1:])
            data.append(np.frombuffer(b"".join(part.ids), np.uint8))
        state = describe_labels_and_ids(state, part)
    for appender in (labels, offsets, data):
        appender.close()
    return state


def describe_labels_and_ids(before: SplitSpec, part: LabelsAndIds) -> SplitSpec:
    """The checksums and sizes after one more part."""
    after = replace(before, labels_crc=extend_crc32c(before.labels_crc, part.labels.astype("<i4")))
    if not part.ids:
        return after
    lines = b"\n".join(part.ids) + b"\n"  # ids hold no line break, so this tells them apart
    id_bytes = before.id_bytes + len(lines) - len(part.ids)
    return replace(after, has_ids=True, id_bytes=id_bytes, ids_crc=extend_crc32c(before.ids_crc, lines))

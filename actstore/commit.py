"""The end of a build or append: labels and ids into their arrays, then the metadata in one rename."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from actstore.chunkfile import extend_crc32c
from actstore.flat import FlatAppender
from actstore.hierarchy import ACTIVATIONS, resize, write_attributes
from actstore.ids import offsets_of
from actstore.ledger import Entry, LedgerFile, content_hash, read_ledger
from actstore.pending import Pending, PendingRows
from actstore.spec import KEY, Json, SplitSpec, StoreSpec


def commit(
    split: Path, spec: StoreSpec, before: SplitSpec, pending: Pending, ledger: LedgerFile,
    source: Mapping[str, Json] | None,
) -> SplitSpec:
    """Make every row that the ledger names part of the split."""
    entries, _ = read_ledger(split / ACTIVATIONS)
    rows = sum(entry.rows for entry in entries)
    after = _merge_rows(split, before, _pending_rows(pending, entries, before.rows, spec.chunk_rows))
    resize(split / ACTIVATIONS, rows)
    content = content_hash(spec.dtype, spec.dim, entries, after.labels_crc, after.ids_crc)
    sources = before.sources
    if rows > before.rows:
        sources = (*sources, {**(source or {"kind": "program"}), "rows": [before.rows, rows]})
    after = replace(
        after,
        rows=rows,
        complete=True,
        content=content,
        ledger_bytes=ledger.size(),
        history=(*before.history, (rows, content)) if content != before.content else before.history,
        sources=sources,
    )
    write_attributes(split, {KEY: after.to_json()})
    pending.remove()
    return after


def _pending_rows(
    pending: Pending, entries: list[Entry], committed: int, chunk_rows: int
) -> Iterator[PendingRows]:
    for entry in entries:
        if entry.chunk * chunk_rows + entry.rows > committed:
            yield pending.read(entry.chunk)


def _merge_rows(split: Path, before: SplitSpec, chunks: Iterator[PendingRows]) -> SplitSpec:
    labels = FlatAppender(split, "labels", before.rows)
    offsets = FlatAppender(split, "path_offsets", before.rows + 1 if before.has_ids else 0)
    data = FlatAppender(split, "path_bytes", before.id_bytes)
    state = before
    for chunk in chunks:
        little = chunk.labels.astype("<i4")
        labels.append(little)
        state = replace(state, labels_crc=extend_crc32c(state.labels_crc, little))
        if chunk.ids:
            joined = b"".join(chunk.ids)
            ends = offsets_of(chunk.ids) + state.id_bytes
            offsets.append(ends if not state.has_ids else ends[1:])
            data.append(np.frombuffer(joined, np.uint8))
            lengths = np.diff(ends).astype("<i8")
            state = replace(
                state,
                has_ids=True,
                id_bytes=state.id_bytes + len(joined),
                ids_crc=extend_crc32c(extend_crc32c(state.ids_crc, lengths), joined),
            )
    for appender in (labels, offsets, data):
        appender.close()
    return state

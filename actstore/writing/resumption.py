"""Where a writer goes on: what an interrupted build or append has left is continued, refused or discarded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, IncompleteError
from actstore.layout.chunk_file import chunk_path
from actstore.layout.columns import uncommitted_columns
from actstore.layout.ledger import read_ledger
from actstore.layout.metadata import ACTIVATIONS
from actstore.layout.own_files import remove_array
from actstore.reading.reader import open_rows
from actstore.spec import Json, SplitSpec, StoreSpec
from actstore.storage.atomic_file import crc32c
from actstore.storage.owned_log import OwnedLog
from actstore.storage.place import Place
from actstore.writing.chunk_writer import begin_storing
from actstore.writing.pending_rows import OpenRows, Pending


def find_position(
    split: Place, spec: StoreSpec, committed: SplitSpec, ledger: OwnedLog, pending: Pending,
    source: Mapping[str, Json] | None, resume: bool, restart: bool,
) -> tuple[int, list[OpenRows]]:  # fmt: skip
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
        pending.remove_kept()
        pending.begin(source)
    durable = sum(entry.rows for entry in read_ledger(array)[0])
    if durable < committed.rows:
        raise DamagedError(f"the ledger of {split} names {durable} rows, expected {committed.rows}")
    kept = list(pending.kept(durable, spec.dim, spec.dtype))
    end = kept[-1].end if kept else durable
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
        split.remove_tree()


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
        remove_array(split / name)
    pending.remove()

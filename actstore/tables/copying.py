"""Rows of a split, with their labels, ids and columns, into another store: block by block, resumable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import LockedError
from actstore.spec import Json, SplitSpec
from actstore.split import Split
from actstore.store import ActivationStore
from actstore.tables.importing import Progress, append_rest
from actstore.tables.row_source import Table, block_rows
from actstore.writing.split_writer import SplitWriter


class SplitRows:
    """Chosen rows of a split in their order as a source; all of them where rows is None."""

    def __init__(self, split: Split, rows: NDArray[np.int64] | None = None) -> None:
        self._split, self._rows = split, rows
        self.shape = (len(split) if rows is None else len(rows), split.dim)
        self.dtype = split.dtype

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        step = block_rows(self.shape[1], self.dtype)
        for position in range(start, stop, step):
            end = min(position + step, stop)
            if self._rows is not None:
                yield self._split.rows.take(self._rows[position:end])
            else:
                yield self._split.rows.read(position, end)
                self._split.rows.release(position, end)


def split_table(split: Split, rows: NDArray[np.int64] | None = None) -> Table:
    """Rows of a split with their labels, as numbers of its class list, columns, and ids where it has any."""
    labels = split.labels
    ids: Sequence[str] | None = split.ids if split.committed.has_ids else None
    columns = {name: split.columns.stored(name) for name in split.columns}
    if rows is None:
        return Table(SplitRows(split), labels, ids, columns)
    ids = None if ids is None else [ids[row] for row in rows.tolist()]
    columns = {name: column.take(rows) for name, column in columns.items()}
    return Table(SplitRows(split, rows), labels[rows], ids, columns)


def copy_rows(
    table: Table,
    target: ActivationStore,
    name: str,
    new: SplitSpec,
    origin: Mapping[str, Json],
    sources: Sequence[Mapping[str, Json]] | None = None,
    progress: Progress | None = None,
    restart: bool = False,
) -> None:
    """Fill split `name` of the target, a store of the same classes, with the rows of a table.

    new: dim and chunk_rows of the split where they are not the target's. origin: what an interrupted copy must name
    again. sources: what the finished split says its rows came from, instead of the origin.
    """
    with SplitWriter(target.path, target.spec, name, origin, restart=restart, new=new) as writer:
        if writer.committed.complete:  # it was not when the caller looked
            writer.discard()
            raise LockedError(f"another process has just finished {target.path / name}; run the same command again")
        append_rest(writer, name, table, progress)
        writer.commit(sources=sources)

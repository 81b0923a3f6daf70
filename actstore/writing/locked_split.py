"""A split that a writer holds: its ledger is locked, and all that the writer decides by is read after that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from actstore.errors import DamagedError
from actstore.layout.columns import read_sound_column
from actstore.layout.ledger import committed_entries, open_ledger
from actstore.layout.metadata import (
    ACTIVATIONS,
    read_labels,
    read_sound_ids,
    read_split_spec,
    read_store_spec,
    require_same_store,
)
from actstore.layout.zarr_arrays import create_split
from actstore.spec import SplitSpec, StoreSpec
from actstore.storage.owned_log import OwnedLog
from actstore.storage.place import Place


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
        read_labels(split, committed)
        if committed.has_ids:
            read_sound_ids(split, committed)
        for column in committed.columns:
            read_sound_column(split, column, committed.rows)
    except DamagedError as error:
        raise DamagedError(
            f"nothing was written, since {split} is damaged: {error}; mend it with "
            f"`actstore verify {split.parent} --repair` first"
        ) from error

"""A store with chunks of another size: a small first import need not fix them for ever."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from actstore.creation import create
from actstore.errors import DamagedError, InvalidInputError
from actstore.layout.ledger import open_ledger
from actstore.layout.metadata import ACTIVATIONS
from actstore.spec import SplitSpec, default_chunk_rows
from actstore.split import Split
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, open
from actstore.tables.copying import copy_rows, split_table
from actstore.tables.importing import Progress
from actstore.upkeep.verify import verify_split

_BLOCK = 4096  # rows
_SAME = ("classes", "dim", "dtype", "codec", "provenance")  # of a store and its unfinished copy
_NEW, _OLD = ".rechunked", ".before-rechunk"


def rechunk(
    store: AnyPlace,
    out: AnyPlace | None = None,
    chunk_rows: int | None = None,
    progress: Progress | None = None,
    restart: bool = False,
) -> ActivationStore:
    """The same rows, labels, ids, columns, classes and sources in chunks of chunk_rows, by default about 32 MiB.

    out: a new store; without it the store itself is replaced once the copy is complete. Interrupted, the same call
    goes on. Every chunk is checked before it is copied. Statistics and indexes are made again when asked for.
    """
    place = parse_place(store)
    if out is not None:
        return _copy(open(place), parse_place(out), chunk_rows, progress, restart)
    if place.local_path is None:
        raise InvalidInputError(f"{place} cannot be replaced in one step; name a new store for the outcome")
    folder = place.local_path.resolve()
    fresh, old = (folder.with_name(folder.name + ending) for ending in (_NEW, _OLD))
    if old.exists() and not folder.exists():  # killed between the two renames
        fresh.rename(folder)
    if restart and not old.exists():
        shutil.rmtree(fresh, ignore_errors=True)
    if not old.exists():
        source = open(folder)
        with _all_splits_locked(source):
            _copy(source, parse_place(fresh), chunk_rows, progress, restart)
            folder.rename(old)
            fresh.rename(folder)
    shutil.rmtree(old)
    return open(folder)


def _copy(
    source: ActivationStore, out: Place, chunk_rows: int | None, progress: Progress | None, restart: bool
) -> ActivationStore:
    for name in source.splits:
        _ = source[name]  # every one must be complete
    target = copy_target(source, out, chunk_rows)
    for name, split in source.splits.items():
        done = target.splits.get(name)
        if done is not None and done.complete:
            _require_same_rows(source[name], target[name])
            continue
        _require_sound(source, name, split)
        new = target.spec.new_split(split.dim or source.dim, chunk_rows)
        origin = {"kind": "rechunk", "path": str(source.path), "split": name, "content": split.content}
        copy_rows(split_table(source[name]), target, name, new, origin, split.sources, progress, restart)
    return target


def copy_target(
    source: ActivationStore, out: Place, chunk_rows: int | None, longest: int | None = None
) -> ActivationStore:
    """The store that a copy goes to, new or begun; longest: rows of its longest split, where those are few."""
    spec = source.spec
    if not (out / "zarr.json").exists():
        wanted = chunk_rows or default_chunk_rows(spec.dim, spec.dtype, longest)
        return create(
            out, classes=spec.classes, dim=spec.dim, dtype=spec.dtype, chunk_rows=spec.whole_pieces(wanted),
            codec=spec.codec, shard_inner_rows=spec.shard_inner_rows or 0, provenance=spec.provenance,
        )  # fmt: skip
    target = open(out)
    same = all(getattr(spec, key) == getattr(target.spec, key) for key in _SAME)
    if not same or (chunk_rows is not None and target.spec.whole_pieces(chunk_rows) != target.spec.chunk_rows):
        raise InvalidInputError(f"{out} exists and is no unfinished copy of {source.path}; choose another path")
    return target


def _require_same_rows(source: Split, target: Split) -> None:
    """A split that an interrupted run has finished; the source may have grown since, or the path may hold another."""
    before, after = source.committed, target.committed
    same = all(getattr(before, key) == getattr(after, key) for key in ("rows", "labels_crc", "ids_crc", "columns"))
    bits = f"u{source.dtype.itemsize}"
    if not same or not all(
        np.array_equal(block.view(bits), other.view(bits))
        for block, other in zip(source.blocks(_BLOCK), target.blocks(_BLOCK), strict=True)
    ):
        raise InvalidInputError(
            f"{target.path} holds other rows than {source.path}; choose another path, or discard it with --restart"
        )


def _require_sound(source: ActivationStore, name: str, split: SplitSpec) -> None:
    """A copy gives its chunks new checksums: what is damaged must not pass for sound after it."""
    faults = verify_split(source.path / name, source.spec.of_split(split), split)
    if faults:
        raise DamagedError(f"{faults[0]}; mend it with `actstore verify {source.path} --repair` first")


@contextmanager
def _all_splits_locked(store: ActivationStore) -> Iterator[None]:
    """No rows may come in while a store is about to be replaced."""
    with ExitStack() as stack:
        for name in store.splits:
            stack.callback(open_ledger(store.path / name / ACTIVATIONS).close)
        yield

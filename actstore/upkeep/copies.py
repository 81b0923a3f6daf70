"""Rows of a store copied into another, block by block and resumable: all of them in chunks of another size, since a
small first import need not fix that for ever; or chosen ones: how one removes, samples or splits rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, IncompleteError, InvalidInputError, LockedError, UnknownValueError
from actstore.layout.metadata import remove_own, strangers
from actstore.progress import SplitProgress
from actstore.spec import Json, SplitSpec, default_chunk_rows
from actstore.split import Split
from actstore.storage.atomic_file import crc32c
from actstore.storage.place import AnyPlace, FolderPath, Place, exchange, parse_place
from actstore.store import ActivationStore, create, open
from actstore.tables.filling import append_rest
from actstore.tables.row_source import Table, split_table
from actstore.upkeep.verify import lasting_faults, verify_split
from actstore.writing.commit import locked
from actstore.writing.split_writer import SplitWriter

_BLOCK = 4096  # rows
_SAME = ("classes", "dim", "dtype", "codec", "provenance")  # of a store and its unfinished copy
_NEW, _OLD = ".rechunked", ".before-rechunk"
_MARK = ".before-rechunk"  # in a store that is about to change places with its copy: the one that has it is the old one


def copy_rows(
    table: Table,
    target: ActivationStore,
    name: str,
    new: SplitSpec,
    origin: Mapping[str, Json],
    sources: Sequence[Mapping[str, Json]] | None = None,
    progress: SplitProgress | None = None,
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


def rechunk(
    store: AnyPlace,
    out: AnyPlace | None = None,
    chunk_rows: int | None = None,
    progress: SplitProgress | None = None,
    restart: bool = False,
) -> ActivationStore:
    """Write the same rows, labels, ids, columns and classes in chunks of another size.

    Every chunk is checked before it is copied. Statistics and indexes are made again when they are asked for. An
    interrupted call goes on when it is repeated.

    Args:
        store: the store to copy.
        out: a new store; without it the store itself is replaced once the copy is complete.
        chunk_rows: rows in a chunk, by default about 32 MiB of them.
        progress: is called with the split, how many of its rows are done and how many it has.
        restart: drop what an interrupted call has copied.

    Returns:
        The store with the new chunks.

    Raises:
        InvalidInputError: a store in a bucket needs `out`, as it cannot be replaced in one step.

    Examples:
        >>> actstore.rechunk("animals.zarr", "small-chunks.zarr", chunk_rows=16)["train"].spec.chunk_rows
        16
    """
    place = parse_place(store)
    if out is not None:
        return _copy(open(place), parse_place(out), chunk_rows, progress, restart)
    if place.local_path is None:
        raise InvalidInputError(f"{place} cannot be replaced in one step; name a new store for the outcome")
    folder = place.local_path.resolve()
    if not _finish(folder):
        _replace(folder, chunk_rows, progress, restart)
        _finish(folder)
    return open(folder)


def _finish(folder: FolderPath) -> bool:
    """What a run that was killed while it replaced the store has left to do; False where there was none.

    What others have put into the store goes into the new one; the rest of the old one is removed.
    """
    fresh, old = (folder.with_name(folder.name + ending) for ending in (_NEW, _OLD))
    if not folder.exists():
        if not old.exists():
            return False
        fresh.rename(folder)  # killed between two renames
    with folder.changing():  # of two at once the later one finds nothing left to do
        if (fresh / _MARK).exists():  # the two have changed places
            fresh.rename(old)
        if not old.exists():
            return False
        for path in strangers(old):
            there = folder / path.relative_to(old)
            with suppress(OSError):  # then it stays
                if path != old / _MARK and not os.path.lexists(there):
                    there.parent.mkdir(parents=True, exist_ok=True)
                    path.rename(there)
        (old / _MARK).unlink(missing_ok=True)
        if left := remove_own(old):
            raise InvalidInputError(
                f"{folder} is replaced, but {', '.join(str(path) for path in left)} could not be moved into it and is "
                f"left where it is; move it elsewhere and remove {old}"
            )
    return True


def _replace(folder: FolderPath, chunk_rows: int | None, progress: SplitProgress | None, restart: bool) -> None:
    """Nothing is replaced before all of the store as it is then has been copied."""
    fresh, old = (folder.with_name(folder.name + ending) for ending in (_NEW, _OLD))
    with ExitStack() as locks:
        held: set[str] = set()
        while True:
            source = open(folder)
            for name in source.splits.keys() - held:  # no rows may come in meanwhile
                locks.enter_context(locked(source.path, name))
                held.add(name)
            if restart and fresh.exists():
                remove_own(fresh)
                restart = False
            if (fresh / "zarr.json").exists():  # classes and facts may have been added since that copy began
                target = open(fresh)
                if source.classes[: len(target.classes)] == target.classes:
                    target.add_classes(source.classes)
                if target.spec.provenance.items() <= source.spec.provenance.items():
                    target.add_provenance(**source.spec.provenance)
            _copy(source, fresh, chunk_rows, progress, restart=False)
            with folder.changing():
                now = open(folder)
                if now.spec == source.spec and now.splits.keys() <= held:
                    (folder / _MARK).touch()
                    if not exchange(fresh, folder):
                        (folder / _MARK).unlink()
                        folder.rename(old)
                        fresh.rename(folder)
                    return


def _copy(
    source: ActivationStore, out: Place, chunk_rows: int | None, progress: SplitProgress | None, restart: bool
) -> ActivationStore:
    for name in source.splits:
        _ = source[name]  # every one must be complete
    target = copy_target(source, out, chunk_rows)
    for name, split in source.splits.items():
        done = target.splits.get(name)
        if done is not None and done.complete:  # by an interrupted run
            _require_same_rows(source[name], target[name])
            continue
        path = source.path / name  # what was seen while others append may be no fault
        # a copy gives its chunks new checksums: what is damaged must not pass for sound after it
        if faults := lasting_faults(path, verify_split(path, source.spec.of_split(split), split)):
            raise DamagedError(f"{faults[0]}; mend it with `actstore verify {source.path} --repair` first")
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
    """The source may have grown since, or the path may hold another store."""
    before, after = source.committed, target.committed
    same = all(getattr(before, key) == getattr(after, key) for key in ("rows", "labels_crc", "ids_crc", "columns"))
    bits = f"u{source.dtype.itemsize}"
    if not same or not all(
        np.array_equal(block.view(bits), other.view(bits))
        for block, other in zip(source.blocks(_BLOCK), target.blocks(_BLOCK), strict=True)
    ):
        raise InvalidInputError(
            f"{target.path} holds other rows than {source.path}; choose another path, or discard it "
            "with restart=True (--restart)"
        )


def _chosen_rows(
    split: Split, classes: Sequence[str] = (), glob: str | None = None, rows: Any = None, where: Sequence[str] = (),
    drop: bool = False,
) -> NDArray[np.int64]:  # fmt: skip
    """The rows of a split that `Split.query` finds; drop: all but those."""
    found = split.query(classes or None, glob, rows, where)
    return np.setdiff1d(np.arange(len(split)), found, assume_unique=True) if drop else found


def select(
    store: AnyPlace,
    out: AnyPlace,
    *,
    classes: Sequence[str] = (),
    path_glob: str | None = None,
    rows: Any = None,
    where: Sequence[str] = (),
    drop: bool = False,
    splits: Sequence[str] = (),
    chunk_rows: int | None = None,
    progress: SplitProgress | None = None,
    restart: bool = False,
) -> ActivationStore:
    """Write chosen rows, or all but them, to a new store, with their labels, ids, columns and provenance.

    Every chunk is checked before rows are taken from it. The new store keeps where its rows came from. An interrupted
    call goes on when it is repeated.

    Args:
        store: the store to choose from.
        out: the new store.
        classes: names of classes; this and the next three choose as in `Split.query`.
        path_glob: a shell pattern for ids.
        rows: a slice, row numbers, a mask, a text such as "1000:2000", or a file of row numbers.
        where: conditions on columns, all of which must hold.
        drop: take all rows but those.
        splits: names of splits, by default all; a split without any chosen row is left out.
        chunk_rows: rows in a chunk of the new store.
        progress: is called with the split, how many of its rows are done and how many it has.
        restart: drop what an interrupted call has copied.

    Returns:
        The new store.

    Raises:
        InvalidInputError: no row is chosen, or `out` is the store itself.

    Examples:
        >>> chosen = actstore.select("animals.zarr", "insects.zarr", classes=["ant", "bee"])
        >>> len(chosen["train"])
        20
    """
    choice = {"classes": list(classes), "glob": path_glob, "where": list(where), "drop": drop, "rows": rows}
    place, target_place = parse_place(store), parse_place(out)
    if str(place.absolute()) == str(target_place.absolute()):
        raise InvalidInputError(f"{out} is the store that is read; choose another path for the chosen rows")
    source = open(place, checked=True)
    chosen, unknown = {}, []
    for name in splits or source.splits:
        try:
            chosen[name] = _chosen_rows(source[name], **choice)
        except UnknownValueError as error:  # another split may have such rows
            unknown.append(error)
            chosen[name] = np.arange(len(source[name]) if drop else 0)
    if unknown and len(unknown) == len(chosen):
        raise unknown[0]
    if not any(len(numbers) for numbers in chosen.values()):
        raise InvalidInputError(f"no row of {', '.join(chosen)} in {place} is chosen, so there is nothing to write")
    longest = max(len(numbers) for numbers in chosen.values())
    target = copy_target(source, target_place, chunk_rows, longest)
    # row numbers given by a program are not kept
    named = {key: value for key, value in choice.items() if (key != "rows" or isinstance(value, str)) and value}
    for name, numbers in chosen.items():
        if not len(numbers):
            continue
        split, done = source[name], target.splits.get(name)
        origin = {
            "kind": "select", "path": str(source.path.absolute()), "split": name, "content": split.content,
            "choice": named, "count": len(numbers), "crc": f"{crc32c(numbers.astype('<i8')):08x}",
        }  # fmt: skip
        if done is not None and done.complete:
            same = all({key: each.get(key) for key in origin} == origin for each in done.sources)
            if not same or done.rows != len(numbers):
                raise IncompleteError(
                    f"{target.path / name} is finished and holds other rows than those chosen now; choose another path"
                )
            target.remove_leftovers(name)
            continue
        sources, new = list(_sources(split, numbers, origin)), target.spec.new_split(split.dim, chunk_rows)
        copy_rows(split_table(split, numbers), target, name, new, origin, sources, progress, restart)
    return target


def _sources(split: Split, rows: NDArray[np.int64], origin: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """One for each source of the split that gave chosen rows; they ascend, so these lie together."""
    for source in split.committed.sources:
        low, high = (int(np.searchsorted(rows, bound)) for bound in source["rows"])
        if low < high:
            first = source.get("from", source)
            kept = {key: value for key, value in first.items() if key not in ("rows", "skipped")}
            yield {**origin, "from": kept, "rows": [low, high]}


def reopen_selected(source: Mapping[str, Json]) -> Table:
    """The rows once more, from the store that they were chosen from."""
    split = open(source["path"], checked=True)[source["split"]]
    if split.content != source["content"]:
        raise InvalidInputError(f"{source['path']} no longer holds the rows that were chosen from it")
    rows = _chosen_rows(split, **source["choice"])
    if f"{crc32c(rows.astype('<i8')):08x}" != source["crc"]:
        raise InvalidInputError(f"which rows of {source['path']} were chosen is no longer known")
    first, last = source["rows"]
    return split_table(split, rows[first:last])

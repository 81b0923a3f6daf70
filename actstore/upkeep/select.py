"""Chosen rows of a store, or all but them, as a store of their own: how one removes, samples or splits rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import IncompleteError, InvalidInputError, UnknownValueError
from actstore.progress import SplitProgress
from actstore.spec import Json, SplitSpec
from actstore.split import Split
from actstore.storage.atomic_file import crc32c
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, open
from actstore.tables.row_source import Table
from actstore.upkeep.rechunk import copy_rows, copy_target, split_table

KIND = "select"


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
    for name, numbers in chosen.items():
        if len(numbers):
            _copy(source, target, name, numbers, choice, chunk_rows, progress, restart)
    return target


def _copy(
    source: ActivationStore, target: ActivationStore, name: str, rows: NDArray[np.int64], choice: Mapping[str, Json],
    chunk_rows: int | None, progress: SplitProgress | None, restart: bool,
) -> None:  # fmt: skip
    split = source[name]
    # row numbers given by a program are not kept
    named = {key: value for key, value in choice.items() if (key != "rows" or isinstance(value, str)) and value}
    origin = {
        "kind": KIND, "path": str(source.path.absolute()), "split": name, "content": split.content,
        "choice": named, "count": len(rows), "crc": f"{crc32c(rows.astype('<i8')):08x}",
    }  # fmt: skip
    done = target.splits.get(name)
    if done is not None and done.complete:
        _require_same(target.path / name, done, origin)
        target.remove_leftovers(name)
        return
    new = target.spec.new_split(split.dim, chunk_rows)
    copy_rows(
        split_table(split, rows), target, name, new, origin, list(_sources(split, rows, origin)), progress, restart
    )


def _require_same(path: Place, done: SplitSpec, origin: Mapping[str, Json]) -> None:
    same = done.rows == origin["count"] and all(
        {key: source.get(key) for key in origin} == origin for source in done.sources
    )
    if not same:
        raise IncompleteError(f"{path} is finished and holds other rows than those chosen now; choose another path")


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

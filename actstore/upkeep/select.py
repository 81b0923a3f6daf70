"""Chosen rows of a store, or all but them, as a store of their own: how one removes, samples or splits rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import IncompleteError, InvalidInputError
from actstore.spec import Json, SplitSpec
from actstore.split import Split
from actstore.storage.atomic_file import crc32c
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, open
from actstore.tables.importing import Progress
from actstore.tables.row_source import Table
from actstore.upkeep.rechunk import copy_rows, copy_target, split_table

KIND = "select"


@dataclass(frozen=True)
class Choice:
    """Which rows of each split, as `Split.query` takes them; drop: all but those."""

    classes: tuple[str, ...] = ()
    path_glob: str | None = None
    rows: Any = None
    where: tuple[str, ...] = ()
    drop: bool = False

    def of(self, split: Split) -> NDArray[np.int64]:
        rows = split.query(self.classes or None, self.path_glob, self.rows, self.where)
        if not self.drop:
            return rows
        keep = np.ones(len(split), bool)
        keep[rows] = False
        return np.flatnonzero(keep)

    def to_json(self) -> dict[str, Json]:
        rows = {"rows": self.rows} if isinstance(self.rows, str) else {}  # numbers given by a program are not kept
        named = {"classes": list(self.classes), "glob": self.path_glob, "where": list(self.where), "drop": self.drop}
        return {key: value for key, value in {**named, **rows}.items() if value}


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
    progress: Progress | None = None,
    restart: bool = False,
) -> ActivationStore:
    """Write the chosen rows with labels, ids, columns, class names and provenance to a new store, block by block.

    classes, path_glob, rows and where choose as in `Split.query`; drop: all but those. splits: all by default; one
    without any chosen row is left out. Interrupted, the same call goes on. Every chunk is
    checked before rows are taken from it. Where the rows came from is kept, so that networks are found again.
    """
    choice = Choice(tuple(classes), path_glob, rows, tuple(where), drop)
    place, target_place = parse_place(store), parse_place(out)
    if str(place.absolute()) == str(target_place.absolute()):
        raise InvalidInputError(f"{out} is the store that is read; choose another path for the chosen rows")
    source = open(place, checked=True)
    chosen = {name: choice.of(source[name]) for name in splits or source.splits}
    if not any(len(numbers) for numbers in chosen.values()):
        raise InvalidInputError(f"no row of {', '.join(chosen)} in {place} is chosen, so there is nothing to write")
    longest = max(len(numbers) for numbers in chosen.values())
    target = copy_target(source, target_place, chunk_rows, longest)
    for name, numbers in chosen.items():
        if len(numbers):
            _copy(source, target, name, numbers, choice, chunk_rows, progress, restart)
    return target


def _copy(
    source: ActivationStore, target: ActivationStore, name: str, rows: NDArray[np.int64], choice: Choice,
    chunk_rows: int | None, progress: Progress | None, restart: bool,
) -> None:  # fmt: skip
    split = source[name]
    origin = {
        "kind": KIND, "path": str(source.path.absolute()), "split": name, "content": split.content,
        "choice": choice.to_json(), "count": len(rows), "crc": f"{crc32c(rows.astype('<i8')):08x}",
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
    store, kept = open(source["path"], checked=True), source["choice"]
    split = store[source["split"]]
    if split.content != source["content"]:
        raise InvalidInputError(f"{source['path']} has other rows by now than those that were chosen from")
    choice = Choice(
        tuple(kept.get("classes", ())), kept.get("glob"), kept.get("rows"), tuple(kept.get("where", ())),
        kept.get("drop", False),
    )  # fmt: skip
    rows = choice.of(split)
    if f"{crc32c(rows.astype('<i8')):08x}" != source["crc"]:
        raise InvalidInputError(f"which rows of {source['path']} were chosen is no longer known")
    first, last = source["rows"]
    return split_table(split, rows[first:last])

"""Which files of a folder are a store's own: what else lies there belongs to others, and is never removed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar

from actstore.errors import ActstoreError
from actstore.layout.columns import KIND
from actstore.layout.ledger import LEDGER
from actstore.layout.metadata import ACTIVATIONS, DIMENSIONS, read_attributes
from actstore.spec import KEY
from actstore.storage.place import Place

AnyKind = TypeVar("AnyKind", bound=Place)
_METADATA = r"zarr\.json(\.part)?"
_UNFINISHED = re.compile(rf"\.({'|'.join(DIMENSIONS)})\.[^/]*")  # statistics that a killed process was writing
# what a folder of the store is -> the names of its own files in it
_FILES = {
    "store": re.compile(_METADATA),
    "split": re.compile(_METADATA),
    "array": re.compile(rf"{_METADATA}|{re.escape(LEDGER)}"),
    "c": re.compile(r"[0-9]+(\.part)?"),
    "pending": re.compile(r"(source\.json|(rows|open)-[0-9]+\.npz)(\.part)?"),
}


def strangers(store: AnyKind) -> list[AnyKind]:
    """What others have put into a store: files, and whole folders where nothing in them is the store's."""
    return [store / name for name, _, is_own in _entries(store, "store") if not is_own]


def remove_own(store: AnyKind) -> list[AnyKind]:
    """Remove a store's own files and folders, as far as these are empty then; returns what others have put there."""
    return _remove(store, "store")


def remove_split(split: Place) -> None:
    """The same of a split."""
    _remove(split, "split")


def remove_array(array: Place) -> None:
    """The same of an array of a split."""
    _remove(array, "array")


def remove_pending(pending: Place) -> None:
    """The same of what an unfinished build has kept."""
    _remove(pending, "pending")


def _remove(top: AnyKind, kind: str) -> list[AnyKind]:
    entries = list(_entries(top, kind))
    top.remove_below([(name, is_folder) for name, is_folder, is_own in entries if is_own])
    return [top / name for name, _, is_own in entries if not is_own]


def _entries(top: Place, kind: str) -> Iterator[tuple[str, bool, bool]]:
    """What lies below a folder: its path from there, whether it is a folder, and whether it is the store's own. What
    is in a folder comes before the folder itself, whose path at last is ""."""
    inside: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for path, is_folder in sorted(top.contents()):
        inside[path.rpartition("/")[0]].append((path, is_folder))

    def visit(folder: str, kind: str) -> Iterator[tuple[str, bool, bool]]:
        for path, is_folder in inside[folder]:
            name = path.rpartition("/")[2]
            below = _kind_of(top / path, name, kind) if is_folder else None
            if below is not None:
                yield from visit(path, below)
            else:
                yield path, is_folder, not is_folder and _FILES[kind].fullmatch(name) is not None
        yield folder, True, True

    return visit("", kind)


def _kind_of(folder: Place, name: str, above: str) -> str | None:
    """What a folder in one of a kind is; None for one of others."""
    if above == "store":
        is_split = _has_attribute(folder, KEY) or (folder / ACTIVATIONS / LEDGER).exists()
        return "split" if is_split else None
    if above == "split":
        is_known = name in DIMENSIONS or _UNFINISHED.fullmatch(name) is not None
        return "array" if is_known or _has_attribute(folder, KIND) else None
    if above == "array":
        return name if name in ("c", "pending") else None
    return above if above == "c" and name.isdecimal() else None


def _has_attribute(folder: Place, name: str) -> bool:
    with suppress(ActstoreError, OSError):
        return name in read_attributes(folder)
    return False

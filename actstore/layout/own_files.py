"""Which files of a folder are a store's own: what else lies there belongs to others, and is never removed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from actstore.errors import ActstoreError
from actstore.layout.columns import KIND
from actstore.layout.ledger import LEDGER
from actstore.layout.metadata import ACTIVATIONS, DIMENSIONS, read_attributes
from actstore.spec import KEY
from actstore.storage.folder_path import FolderPath
from actstore.storage.place import Place

_METADATA = r"zarr\.json(\.part)?"
_CHUNK = re.compile(r"[0-9]+(\.part)?")
_PENDING = re.compile(r"(source\.json|(rows|open)-[0-9]+\.npz)(\.part)?")
_OF_ARRAY = re.compile(rf"{_METADATA}|{re.escape(LEDGER)}")
_UNFINISHED = re.compile(rf"\.({'|'.join(DIMENSIONS)})\.[^/]*")  # statistics that a killed process was writing


def strangers(store: Path) -> list[Path]:
    """What others have put into a store: files, and whole folders where nothing in them is the store's."""
    return [path for path, is_own in _entries_of_store(store) if not is_own]


def remove_own(store: Path) -> list[Path]:
    """Remove a store's own files and folders, as far as these are empty then; returns what others have put there."""
    return _remove(_entries_of_store(store))


def remove_array(array: Place) -> None:
    """Remove an array of a split; what others have put into its folder stays."""
    if array.local_path is None:
        array.remove_tree()
    else:
        _remove(_entries_of_array(array.local_path))


def remove_pending(pending: Place) -> None:
    """Remove what an unfinished build has kept; what others have put into its folder stays."""
    if pending.local_path is None:
        pending.remove_tree()
    else:
        _remove(_files_named(pending.local_path, _PENDING))


def _remove(entries: Iterator[tuple[Path, bool]]) -> list[Path]:
    left = []
    for path, is_own in [*entries]:
        if not is_own:
            left.append(path)
        elif path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # something of others is in it, or it was never there
                path.rmdir()
        else:
            path.unlink(missing_ok=True)
    return left


def _entries_of_store(store: Path) -> Iterator[tuple[Path, bool]]:
    """Files and folders, and whether they are the store's own, what is in a folder before the folder itself."""
    for entry in _listed(store):
        if entry.is_dir() and not entry.is_symlink() and _is_split(entry):
            yield from _entries_of_split(entry)
        else:
            yield entry, re.fullmatch(_METADATA, entry.name) is not None and entry.is_file()
    yield store, True


def _is_split(folder: Path) -> bool:
    return _has_attribute(folder, KEY) or (folder / ACTIVATIONS / LEDGER).is_file()


def _entries_of_split(split: Path) -> Iterator[tuple[Path, bool]]:
    for entry in _listed(split):
        if not entry.is_dir() or entry.is_symlink():
            yield entry, re.fullmatch(_METADATA, entry.name) is not None
        elif entry.name in DIMENSIONS or _UNFINISHED.fullmatch(entry.name) or _has_attribute(entry, KIND):
            yield from _entries_of_array(entry)
        else:
            yield entry, False
    yield split, True


def _entries_of_array(array: Path) -> Iterator[tuple[Path, bool]]:
    for entry in _listed(array):
        if entry.is_dir() and not entry.is_symlink() and entry.name == "c":
            yield from _files_named(entry, _CHUNK)
        elif entry.is_dir() and not entry.is_symlink() and entry.name == "pending":
            yield from _files_named(entry, _PENDING)
        else:
            yield entry, entry.is_file() and _OF_ARRAY.fullmatch(entry.name) is not None
    yield array, True


def _files_named(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[Path, bool]]:
    for entry in _listed(folder):
        matches = pattern.fullmatch(entry.name) is not None
        if entry.is_dir() and not entry.is_symlink() and matches:
            yield from _files_named(entry, pattern)
        else:
            yield entry, matches and not entry.is_dir()
    yield folder, True


def _has_attribute(folder: Path, name: str) -> bool:
    with suppress(ActstoreError, OSError):
        return name in read_attributes(FolderPath(folder))
    return False


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []

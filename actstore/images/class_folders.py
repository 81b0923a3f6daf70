"""Class folders: a folder, or a tar, per class; or images without classes in one flat folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from actstore.errors import InvalidInputError
from actstore.images.benchmark_layouts import ANNOTATIONS, DEVKIT, KAGGLE, META, SYNSET_LISTS, is_flat, label_flat
from actstore.images.image_set import (
    ENDINGS,
    ImageItem,
    Listing,
    Skipped,
    ending_fault,
    has_image_ending,
    id_fault,
    printable,
)
from actstore.images.tars import list_class_tar
from actstore.spec import is_stray

USED = tuple(name.lower() for name in (".tar", ANNOTATIONS, KAGGLE, DEVKIT, META, *SYNSET_LISTS, *ENDINGS))


def list_folder(folder: Path) -> Listing:
    """Images of the class folders, class tars and WebDataset shards in `folder`, sorted by class and path.

    Where there are none, the images that lie in it loose, without labels.
    """
    entries = sorted_entries(folder)
    folders = [entry for entry in entries if is_folder(entry)]
    tars = [entry for entry in entries if not is_folder(entry) and entry.name.endswith(".tar")]
    if both := sorted({entry.name for entry in folders} & {entry.name.removesuffix(".tar") for entry in tars}):
        more = f" and {len(both) - 1} more" if len(both) > 1 else ""
        raise InvalidInputError(
            f"class {both[0]!r}{more} is in {folder} both as a folder and as a tar; remove one of the two"
        )
    items: list[ImageItem] = []
    skipped: Skipped = []
    loose = [entry for entry in entries if has_image_ending(entry.name) and not is_folder(entry)]
    for entry in sorted([*folders, *tars], key=lambda entry: entry.name.removesuffix(".tar")):
        listed, left_out = _class_folder(folder, entry.name) if is_folder(entry) else list_class_tar(Path(entry.path))
        items += listed
        skipped += left_out
    others = [entry.name for entry in entries if not is_folder(entry) and not entry.name.lower().endswith(USED)]
    skipped += [(printable(name), str(ending_fault(name))) for name in others]
    annotations = folder / ANNOTATIONS
    if is_flat(items) and annotations.is_file():
        try:
            items, unknown = label_flat(items, annotations.read_bytes(), str(annotations))
        except OSError as error:
            raise InvalidInputError(f"{annotations} cannot be read: {error.strerror or error}") from None
        skipped += unknown
    if items:
        return items, skipped + [(printable(entry.name), "not in a class folder") for entry in loose]
    loose_items, left_out = _loose_images(folder, loose)
    return loose_items, skipped + left_out


def sorted_entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, by name, but for stray files and folders."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not is_stray(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        raise InvalidInputError(f"folder {folder} cannot be listed: {error.strerror or error}") from None


def is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # links in a circle
        return entry.is_dir()
    return False


def _class_folder(root: Path, name: str) -> Listing:
    if fault := id_fault(name):
        return [], [(printable(name), fault)]
    skipped: Skipped = []
    above = {os.path.realpath(root)}
    source = str(root)
    items = [ImageItem(path, name, source) for path in _walk(root, name, above, set(), skipped)]
    return items, skipped if items or skipped else [(name, "empty class folder")]


def list_below(folder: Path) -> Listing:
    """Images without labels that lie in a folder or in folders inside of it."""
    skipped: Skipped = []
    items = [ImageItem(path, None, str(folder)) for path in _walk(folder, "", set(), set(), skipped)]
    return items, skipped


def _walk(root: Path, inside: str, above: set[str], visited: set[str], skipped: Skipped) -> Iterator[str]:
    """Paths of images relative to root, in order; links are followed, but never in a circle."""
    real = os.path.realpath(root / inside)
    if real in above:
        skipped.append((printable(inside), "symbolic link to a folder above it"))
        return
    if real in visited:
        skipped.append((printable(inside), "symbolic link to a folder of the same class"))
        return
    visited.add(real)
    for entry in sorted_entries(root / inside):
        path = f"{inside}/{entry.name}" if inside else entry.name
        if fault := id_fault(path):
            skipped.append((printable(path), fault))
        elif is_folder(entry):
            yield from _walk(root, path, above | {real}, visited, skipped)
        elif reason := _why_no_image(entry):
            skipped.append((path, reason))
        else:
            yield path


def _why_no_image(entry: os.DirEntry[str]) -> str | None:
    if fault := ending_fault(entry.name):
        return fault
    with suppress(OSError):  # links in a circle
        if entry.is_file():
            return None
    return "broken or circular symbolic link" if entry.is_symlink() else "not a plain file"


def _loose_images(folder: Path, loose: list[os.DirEntry[str]]) -> Listing:
    items, skipped, source = [], [], str(folder)
    for entry in loose:
        if reason := id_fault(entry.name) or _why_no_image(entry):
            skipped.append((printable(entry.name), reason))
        else:
            items.append(ImageItem(entry.name, None, source))
    return items, skipped

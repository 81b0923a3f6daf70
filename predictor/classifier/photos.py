"""Images that a user names, and rows of a store, as activations of a classifier's network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actstore import Split
from actstore.analysis.alignment import default_split
from actstore.backbones.loading import Backbone
from actstore.compute.device import parse_device
from actstore.compute.tensors import borrow
from actstore.errors import InvalidInputError
from actstore.extraction.forward import activations_of, load_recorded
from actstore.images.class_folders import is_folder, list_below, sorted_entries
from actstore.images.image_set import ENDINGS, ImageItem, id_fault, printable, same_bytes
from actstore.progress import bar
from predictor.classifier.unknown import refuse_reserved
from predictor.protocol.setting import open_store

if TYPE_CHECKING:
    from predictor.classifier.classifier import Classifier, FilePath, Store

MAX_LISTED = 5  # unused files that are named one by one


@dataclass
class Photos:
    """items: images, labelled where their category is known. warnings: what was left out, and why."""

    items: list[ImageItem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add_below(self, folder: Path, label: str | None = None) -> None:
        """The images in a folder and below."""
        items, skipped = list_below(folder)
        self.items += [replace(item, label=label) for item in items]
        self.warn_of_unused(folder, skipped)

    def warn_of_unused(self, folder: Path, skipped: Sequence[tuple[str, str]]) -> None:
        self.warnings += [f"not used: {folder / name}: {reason}" for name, reason in skipped[:MAX_LISTED]]
        if len(skipped) > MAX_LISTED:
            self.warnings.append(f"not used: {len(skipped) - MAX_LISTED:,} more in {folder}")

    def count_once(self) -> None:
        """An image that lies in a category twice, by its bytes, counts once; one in two categories is kept in both."""
        left_out = set()
        for items in same_bytes(self.items):
            homes: dict[str | None, ImageItem] = {}
            for item in items:
                if item.label in homes:
                    left_out.add(item)
                    same = homes[item.label].path
                    self.warnings.append(f"counted once: {item.path} is the same image as {same}")
                homes.setdefault(item.label, item)
            if len(homes) > 1:
                where = " and ".join(str(item.path) for item in homes.values())
                self.warnings.append(f"WARNING: the same image is in {len(homes)} categories: {where}")
        self.items = [item for item in self.items if item not in left_out]


def list_folder(root: Path, on_error: str | None = None) -> Photos:
    """ROOT/CATEGORY/*.jpg, labelled. on_error: a category without an image is left out (skip), or an error (fail); None
    where there is no such choice, and it is an error."""
    if not root.is_dir():
        raise InvalidInputError(f"no folder {root}; expected {root}/CATEGORY/*.jpg")
    faults = {
        entry.name: id_fault(entry.name) if is_folder(entry) else "not in the folder of a category"
        for entry in sorted_entries(root)
    }
    photos = Photos()
    photos.warn_of_unused(root, [(printable(name), fault) for name, fault in faults.items() if fault is not None])
    folders = [root / name for name, fault in faults.items() if fault is None]
    if not folders:
        raise InvalidInputError(f"{root} has no folder of its own for each category; expected {root}/CATEGORY/*.jpg")
    for folder in folders:
        refuse_reserved(folder.name)
        photos.add_below(folder, folder.name)
    photos.count_once()
    found = {item.label for item in photos.items}
    empty = [folder for folder in folders if folder.name not in found]
    if empty and (on_error != "skip" or not found):
        raise InvalidInputError(
            f"category {empty[0].name!r} has no example: {empty[0]} holds no image"
            + " (--on-error skip leaves it out)" * (on_error is not None and bool(found))
        )
    photos.warnings += [f"left out: category {folder.name!r}, as {folder} holds no image" for folder in empty]
    return photos


def list_category(name: str, images: FilePath | Sequence[FilePath]) -> Photos:
    """Images of one category, labelled."""
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"a category needs a name, got {name!r}")
    refuse_reserved(name)
    photos = list_images(images)
    if not photos.items:
        raise InvalidInputError(f"category {name!r} has no example: no image is named")
    photos.items = [replace(item, label=name) for item in photos.items]
    photos.count_once()
    return photos


def list_images(images: FilePath | Sequence[FilePath], on_error: str = "fail") -> Photos:
    """Files as they are, and of a folder the images in it and below. on_error: "skip" leaves it to whoever reads them
    to find that one of several is missing."""
    photos, listed = Photos(), isinstance(images, Iterable) and not isinstance(images, str | os.PathLike)
    named: list[Any] = list(images) if listed else [images]  # type: ignore[arg-type]
    for given in named:
        if not isinstance(given, str | os.PathLike):
            raise InvalidInputError(f"images are named by their files or folders, got {type(given).__name__}")
        path, before = Path(given), len(photos.items)
        if path.is_dir():
            photos.add_below(path)
            if len(photos.items) == before:
                raise InvalidInputError(f"{path} holds no image ({', '.join(ENDINGS)})")
        elif path.is_file() or (on_error == "skip" and len(named) > 1):
            photos.items.append(ImageItem(path.name, None, str(path.parent)))
        else:
            raise InvalidInputError(f"no such image or folder: {path}")
    return photos


@dataclass(frozen=True)
class ReadPhotos:
    """rows: (n, dim) of the images in `items`. unreadable: path -> why. warnings: of listing and reading."""

    rows: Tensor
    items: list[ImageItem]
    unreadable: dict[str, str]
    warnings: list[str]

    def by_label(self) -> dict[str, tuple[Tensor, list[ImageItem]]]:
        labels = [item.label or "" for item in self.items]
        places = {
            name: [place for place, label in enumerate(labels) if label == name] for name in dict.fromkeys(labels)
        }
        return {name: (self.rows[mine], [self.items[place] for place in mine]) for name, mine in places.items()}


def read_photos(
    classifier: Classifier, photos: Photos, on_error: str, weights: FilePath | None, device: str,
    progress: bool | None,
) -> ReadPhotos:  # fmt: skip
    """By the classifier's network. on_error: an image that cannot be read is left out (skip), or an error (fail)."""
    if on_error not in ("skip", "fail"):
        raise InvalidInputError(f"on_error must be skip or fail, got {on_error!r}")
    backbone, views = network_of(classifier, weights), classifier.about.get("network", {}).get("views", 1)
    with bar("read", len(photos.items), "images", progress) as shown:
        rows, positions, failures = activations_of(
            backbone, photos.items, parse_device(device), views, on_batch=shown.update
        )
    unreadable = {}
    for position, reason in failures:
        item = photos.items[position]
        unreadable[str(item.path)] = reason.removeprefix(f"{item.id}: ")
        if on_error == "fail":
            raise InvalidInputError(
                f"{item.path}: {unreadable[str(item.path)]} (--on-error skip leaves such images out)"
            )
    skipped = [f"skipped {path}: {reason}" for path, reason in unreadable.items()]
    return ReadPhotos(rows, [photos.items[place] for place in positions], unreadable, [*photos.warnings, *skipped])


def network_of(classifier: Classifier, weights: FilePath | None = None) -> Backbone:
    """Loaded once. weights: where its file is now."""
    if classifier.backbone is None:
        record = classifier.about.get("network", {})
        if not record.get("backbone"):
            raise InvalidInputError(
                "the classifier names no network that could read images, as its activations were given or imported: "
                "ask it about those, or make one with Classifier.from_backbone or `ppa adapt --backbone`"
            )
        classifier.backbone = load_recorded(record, None if weights is None else Path(weights))
    return classifier.backbone


def read_rows(
    classifier: Classifier, store: Store, split: str | None, classes: Sequence[str] | None,
    path_glob: str | None, rows: Any,
) -> tuple[Split, NDArray[np.int64], Tensor]:  # fmt: skip
    """The split (by default the only one, or train), the rows that the filters choose, and their activations (n, dim).

    Where the store or the classifier does not say which network it is from, only the dim can tell them apart.
    """
    opened = open_store(store)
    chosen = opened[split] if split else default_split(opened)
    require_network(classifier, chosen)
    numbers = chosen.query(classes=list(classes or ()) or None, path_glob=path_glob, rows=rows)
    return chosen, numbers, borrow(chosen.take(numbers)).float()


def require_network(classifier: Classifier, split: Split) -> None:
    """Rows must be of the network that the classifier names."""
    record, theirs = classifier.about.get("network", {}), split.spec.provenance
    ours, other = record.get("weights_sha256"), theirs.get("weights_sha256")
    if ours and other and ours != other:
        raise InvalidInputError(
            f"{split.store_path} holds activations of another network ({theirs.get('backbone')}) than the "
            f"classifier's ({record.get('backbone')}); give rows of that one"
        )

"""Examples of new categories, and images to classify: from folders, or rows of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actstore import Split
from actstore.backbones.loading import Backbone
from actstore.compute.device import parse_device
from actstore.compute.tensors import borrow
from actstore.errors import InvalidInputError
from actstore.extraction.recorded_network import activations_of, load_recorded
from actstore.images.class_folders import is_folder, list_below, sorted_entries
from actstore.images.image_set import ENDINGS, ImageItem, id_fault, printable, same_bytes
from actstore.storage.place import Place
from cli.progress import progress
from cli.stores import open_split
from predictor.classifier.unknown import refuse_reserved

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

SAID = 5  # unused files that are named one by one


def list_support(root: Path) -> dict[str, list[ImageItem]]:
    """Category -> its images, from ROOT/CATEGORY/*.jpg; a category without one is an error."""
    if not root.is_dir():
        raise InvalidInputError(f"no folder {root}; expected {root}/CATEGORY/*.jpg")
    entries = sorted_entries(root)
    faults = {
        entry.name: id_fault(entry.name) if is_folder(entry) else "not in the folder of a category" for entry in entries
    }
    say_unused(root, [(printable(name), fault) for name, fault in faults.items() if fault is not None])
    folders = [root / name for name, fault in faults.items() if fault is None]
    if not folders:
        raise InvalidInputError(f"{root} has no folder of its own for each category; expected {root}/CATEGORY/*.jpg")
    for folder in folders:
        refuse_reserved(folder.name)
    support = each_once(
        {folder.name: [replace(item, label=folder.name) for item in list_images(folder)] for folder in folders}
    )
    if empty := [name for name, images in support.items() if not images]:
        raise InvalidInputError(f"category {empty[0]!r} has no support: {root / empty[0]} holds no image")
    return support


def list_images(folder: Path) -> list[ImageItem]:
    """The images in a folder and below; what else it holds is said."""
    items, skipped = list_below(folder)
    say_unused(folder, skipped)
    return items


def each_once(support: dict[str, list[ImageItem]]) -> dict[str, list[ImageItem]]:
    """An image that lies in a category twice, by its bytes, counts once; one in two categories is kept in both. Both
    are said."""
    left_out = set()
    for items in same_bytes([item for images in support.values() for item in images]):
        homes: dict[str | None, ImageItem] = {}
        for item in items:
            if item.label in homes:
                left_out.add(item)
                click.echo(f"counted once: {item.path} is the same image as {homes[item.label].path}", err=True)
            homes.setdefault(item.label, item)
        if len(homes) > 1:
            where = " and ".join(str(item.path) for item in homes.values())
            click.echo(f"WARNING: the same image is in {len(homes)} categories: {where}", err=True)
    return {name: [item for item in images if item not in left_out] for name, images in support.items()}


def say_unused(folder: Path, skipped: Sequence[tuple[str, str]]) -> None:
    for name, reason in skipped[:SAID]:
        click.echo(f"not used: {folder / name}: {reason}", err=True)
    if len(skipped) > SAID:
        click.echo(f"not used: {len(skipped) - SAID:,} more in {folder}", err=True)


def list_queries(paths: Sequence[Path]) -> list[ImageItem]:
    """Files as they are, and of a folder the images in it and below."""
    items = []
    for path in paths:
        if path.is_dir():
            inside = list_images(path)
            if not inside:
                raise InvalidInputError(f"{path} holds no image ({', '.join(ENDINGS)})")
            items += inside
        elif path.is_file():
            items.append(ImageItem(path.name, None, str(path.parent)))
        else:
            raise InvalidInputError(f"no such image or folder: {path}")
    return items


def read_images(
    record: Mapping[str, Any], weights: Path | None, items: Sequence[ImageItem], device: str, on_error: str = "fail",
    backbone: Backbone | None = None,
) -> tuple[Tensor, list[ImageItem]]:  # fmt: skip
    """Activations (n, dim) by the network that a classifier or store names, and the images they are of. backbone: that
    network, where it is loaded already."""
    backbone = backbone or load_recorded(record, weights)
    with progress("read", len(items), "images") as bar:
        rows, positions, failures = activations_of(
            backbone, items, parse_device(device), record.get("views", 1), on_batch=bar.update
        )
    for position, reason in failures:
        where = f"{items[position].path}: {reason.removeprefix(f'{items[position].id}: ')}"
        if on_error == "fail":
            raise InvalidInputError(f"{where} (--on-error skip leaves such images out)")
        click.echo(f"skipped {where}", err=True)
    return rows, [items[position] for position in positions]


def support_from_images(
    record: Mapping[str, Any], weights: Path | None, listed: Mapping[str, list[ImageItem]], device: str, on_error: str,
    backbone: Backbone | None = None,
) -> dict[str, tuple[Tensor, list[ImageItem]]]:  # fmt: skip
    """Category -> activations (n, dim) and the images they are of: none, where none of those listed could be read."""
    wanted = [item for images in listed.values() for item in images]
    rows, items = read_images(record, weights, wanted, device, on_error, backbone)
    places = {name: [place for place, item in enumerate(items) if item.label == name] for name in listed}
    return {name: (rows[mine], [items[place] for place in mine]) for name, mine in places.items()}


def require_network(record: Mapping[str, Any], split: Split) -> None:
    """Rows must be of the network that a classifier names."""
    theirs = split.spec.provenance
    ours, other = record.get("weights_sha256"), theirs.get("weights_sha256")
    if ours and other and ours != other:
        raise InvalidInputError(
            f"{split.store_path} holds activations of another network ({theirs.get('backbone')}) than the "
            f"classifier's ({record.get('backbone')}); give rows of that one"
        )


def read_rows(
    record: Mapping[str, Any], store: Place, split: str | None, classes: Sequence[str], path_glob: str | None,
    rows: str | None,
) -> tuple[Split, NDArray[np.int64], Tensor]:  # fmt: skip
    """The split, the rows that the filters choose, and their activations (n, dim). record: the network they must be of.

    Where the store or the classifier does not say which network it is from, only the dim can tell them apart.
    """
    opened = open_split(store, split)
    require_network(record, opened)
    numbers = opened.query(classes=list(classes) or None, path_glob=path_glob, rows=rows)
    return opened, numbers, borrow(opened.take(numbers)).float()


def support_from_rows(
    record: Mapping[str, Any], store: Place, split: str | None, classes: Sequence[str], path_glob: str | None,
    rows: str | None,
) -> dict[str, Tensor]:  # fmt: skip
    """Labelled rows of a store, by class."""
    opened, numbers, values = read_rows(record, store, split, classes, path_glob, rows)
    labels = opened.labels[numbers]
    if not len(numbers) or (labels < 0).any():
        what = "no row" if not len(numbers) else "a row without a label"
        raise InvalidInputError(f"the support chosen from {opened.path} holds {what}; choose labelled rows")
    return {opened.classes[label]: values[labels == label] for label in sorted(set(labels.tolist()))}

"""Examples of new categories, and images to classify: from folders, or rows of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import open_split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from actstore import Split
    from actstore.backbones.loading import Backbone
    from actstore.images.image_set import ImageItem
    from actstore.storage.place import Place

SAID = 5  # unused files that are named one by one


def list_support(root: Path) -> dict[str, list[ImageItem]]:
    """Category -> its images, from ROOT/CATEGORY/*.jpg; a category without one is an error."""
    from actstore.errors import InvalidInputError
    from actstore.images.class_folders import is_folder, sorted_entries
    from predictor.classifier.unknown import refuse_reserved

    if not root.is_dir():
        raise InvalidInputError(f"no folder {root}; expected {root}/CATEGORY/*.jpg")
    entries = sorted_entries(root)
    folders = [Path(entry.path) for entry in entries if is_folder(entry)]
    say_unused(root, [(entry.name, "not in the folder of a category") for entry in entries if not is_folder(entry)])
    if not folders:
        raise InvalidInputError(f"{root} has no folder of its own for each category; expected {root}/CATEGORY/*.jpg")
    for folder in folders:
        refuse_reserved(folder.name)
    found = each_once({folder.name: list_images(folder) for folder in folders})
    if empty := [name for name, images in found.items() if not images]:
        raise InvalidInputError(f"category {empty[0]!r} has no support: {root / empty[0]} holds no image")
    return found


def list_images(folder: Path) -> list[ImageItem]:
    """The images in a folder and below, labelled with its name; what else it holds is said."""
    from actstore.images.class_folders import list_below

    items, skipped = list_below(folder)
    say_unused(folder, skipped)
    return [replace(item, label=folder.name) for item in items]


def each_once(found: dict[str, list[ImageItem]]) -> dict[str, list[ImageItem]]:
    """An image that lies in a category twice, by its bytes, counts once; one in two categories is kept in both. Both
    are said."""
    from actstore.images.image_set import same_bytes

    left_out = set()
    for items in same_bytes([item for images in found.values() for item in images]):
        homes: dict[str | None, ImageItem] = {}
        for item in items:
            if item.label in homes:
                left_out.add(item)
                click.echo(f"counted once: {item.path} is the same image as {homes[item.label].path}", err=True)
            homes.setdefault(item.label, item)
        if len(homes) > 1:
            where = " and ".join(str(item.path) for item in homes.values())
            click.echo(f"WARNING: the same image is in {len(homes)} categories: {where}", err=True)
    return {name: [item for item in images if item not in left_out] for name, images in found.items()}


def say_unused(folder: Path, skipped: Sequence[tuple[str, str]]) -> None:
    for name, reason in skipped[:SAID]:
        click.echo(f"not used: {folder / name}: {reason}", err=True)
    if len(skipped) > SAID:
        click.echo(f"not used: {len(skipped) - SAID:,} more in {folder}", err=True)


def list_queries(paths: Sequence[Path]) -> list[ImageItem]:
    """Files as they are, and of a folder the images in it and below."""
    from actstore.errors import InvalidInputError
    from actstore.images.class_folders import list_below
    from actstore.images.image_set import ENDINGS, ImageItem

    found = []
    for path in paths:
        if path.is_dir():
            inside, skipped = list_below(path)
            say_unused(path, skipped)
            if not inside:
                raise InvalidInputError(f"{path} holds no image ({', '.join(ENDINGS)})")
            found += inside
        elif path.is_file():
            found.append(ImageItem(path.name, None, str(path.parent)))
        else:
            raise InvalidInputError(f"no such image or folder: {path}")
    return found


def read_images(
    record: Mapping[str, Any], weights: Path | None, items: Sequence[ImageItem], device: str, on_error: str = "fail",
    backbone: Backbone | None = None,
) -> tuple[Tensor, list[ImageItem]]:  # fmt: skip
    """Activations (n, dim) by the network that a classifier or store names, and the images they are of. backbone: that
    network, where it is loaded already."""
    from actstore.compute.device import parse_device
    from actstore.errors import InvalidInputError
    from actstore.extraction.recorded_network import activations_of, load_recorded
    from cli.progress import progress

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
    record: Mapping[str, Any], weights: Path | None, root: Path, device: str, on_error: str,
    backbone: Backbone | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Category -> activations (n, dim)."""
    from actstore.errors import InvalidInputError

    listed = list_support(root)
    rows, items = read_images(
        record, weights, [item for images in listed.values() for item in images], device, on_error, backbone
    )
    found = {}
    for name in listed:
        mine = [place for place, item in enumerate(items) if item.label == name]
        if not mine:
            raise InvalidInputError(f"category {name!r} has no support left: none of its images could be read")
        found[name] = rows[mine]
    return found


def require_network(record: Mapping[str, Any], split: Split) -> None:
    """Rows must be of the network that a classifier names."""
    from actstore.errors import InvalidInputError

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
    from actstore.compute.tensors import borrow

    opened = open_split(store, split)
    require_network(record, opened)
    chosen = opened.query(classes=list(classes) or None, path_glob=path_glob, rows=rows)
    return opened, chosen, borrow(opened.take(chosen)).float()


def support_from_rows(
    record: Mapping[str, Any], store: Place, split: str | None, classes: Sequence[str], path_glob: str | None,
    rows: str | None,
) -> dict[str, Tensor]:  # fmt: skip
    """Labelled rows of a store, by class."""
    from actstore.errors import InvalidInputError

    opened, chosen, values = read_rows(record, store, split, classes, path_glob, rows)
    labels = opened.labels[chosen]
    if not len(chosen) or (labels < 0).any():
        what = "no row" if not len(chosen) else "a row without a label"
        raise InvalidInputError(f"the support chosen from {opened.path} holds {what}; choose labelled rows")
    return {opened.classes[label]: values[labels == label] for label in sorted(set(labels.tolist()))}

"""Tiny-ImageNet's own layout: val/images/*.JPEG with val/val_annotations.txt, and test/images/*.JPEG without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from actstore.errors import InvalidInputError
from actstore.images.image_set import ImageItem, Listing, labelled

ANNOTATIONS = "val_annotations.txt"
IMAGES = "images"  # the one folder of a split that has no class folders


def is_flat(items: Sequence[ImageItem]) -> bool:
    """Whether all images lie in a folder `images`, which then is no class."""
    return bool(items) and all(item.label == IMAGES for item in items)


def without_labels(split: str, items: Sequence[ImageItem], train: Sequence[ImageItem]) -> list[ImageItem]:
    """The images of a split without annotations: in Tiny-ImageNet's test/images none has a label."""
    if split == "train" or not is_flat(items) or not train or any(item.label in (None, IMAGES) for item in train):
        return list(items)
    if split == "val":
        raise InvalidInputError(
            f"{len(items):,} images of val lie in {IMAGES}/, which is no class of train: expected {ANNOTATIONS} "
            "beside it, with lines of file name, tab and class; put it there"
        )
    return [replace(item, label=None) for item in items]


def label_flat(items: Sequence[ImageItem], annotations: bytes, where: str) -> Listing:
    """The images with the class that the annotations give their file name; the others are skipped."""
    label_of = _read(annotations, where)
    return labelled(items, [label_of.get(item.id.rpartition("/")[2]) for item in items], ANNOTATIONS, where)


def _read(data: bytes, where: str) -> Mapping[str, str]:
    """{file name: class} from lines of file name, class and a box, with tabs between them."""
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{where} cannot be read as text: {error}") from None
    labels: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        if not rest or not rest[0].strip():
            raise InvalidInputError(f"line {number} of {where} is {line!r}; expected a file name, a tab and a class")
        labels[name] = rest[0].strip()
    return labels

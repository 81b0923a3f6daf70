"""Layouts of published data sets: ILSVRC's own, and Tiny-ImageNet's (val/images/*.JPEG with val_annotations.txt)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from actstore.errors import InvalidInputError, reason_of
from actstore.images.image_set import ImageItem, Listing, labelled

KAGGLE = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_validation_ground_truth.txt"
SYNSET_LISTS = ("map_clsloc.txt", "synsets.txt", "LOC_synset_mapping.txt")
META = "meta.mat"
_DEVKIT_FOLDERS = ("", "data", "devkit/data", "ILSVRC2012_devkit_t12/data", "ILSVRC/devkit/data")
_NAMED = re.compile(r"ILSVRC2012_val_0*(\d+)\.[A-Za-z]+$")
# The numbers of the ground truth follow ILSVRC2012_ID, whose first is the kit fox; the alphabet's first is the tench.
_FIRST_BY_ID, _FIRST_BY_NAME = "n02119789", "n01440764"


def looks_like_validation(items: Sequence[ImageItem]) -> bool:
    return bool(items) and all(item.label is None for item in items) and bool(_NAMED.search(items[0].id))


def label_validation(
    items: Sequence[ImageItem], places: Sequence[Path], truth: Path | None = None, synsets: Path | None = None
) -> Listing:
    """The same images with WNIDs as labels; those the file says nothing about are skipped.

    places: folders to search for `truth` and `synsets` where they are not given.
    """
    file = truth or _find_file((KAGGLE, DEVKIT), places)
    if file is None:
        raise InvalidInputError(
            f"{len(items):,} flat validation images have no labels: expected {KAGGLE}, or {DEVKIT} with "
            f"a list of WNIDs, in {places[0]}; put it there or name it"
        )
    if file.suffix == ".csv":
        by_stem = _read_kaggle(file)
        labels = [by_stem.get(item.id.rpartition("/")[2].rpartition(".")[0]) for item in items]
    else:
        by_number = _read_devkit(file, synsets or _find_file((*SYNSET_LISTS, META), places))
        named = [_NAMED.search(item.id) for item in items]
        labels = [by_number.get(int(match[1])) if match else None for match in named]
    return labelled(items, labels, file.name, str(file))


def _find_file(names: Iterable[str], places: Iterable[Path]) -> Path | None:
    candidates = [place / folder / name for name in names for place in places for folder in _DEVKIT_FOLDERS]
    return next((path for path in candidates if path.is_file()), None)


def _read_lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} cannot be read as text: {reason_of(error)}") from None


def _read_kaggle(path: Path) -> dict[str, str]:
    """{image name: WNID} from ImageId,PredictionString; the string begins with the WNID."""
    lines = _read_lines(path)
    if not lines or [name.strip() for name in lines[0].split(",")] != ["ImageId", "PredictionString"]:
        raise InvalidInputError(f"{path} begins with {lines[:1]}; expected the header ImageId,PredictionString")
    rows = [row for row in csv.reader(lines[1:]) if len(row) == 2 and row[1].split()]
    return {row[0]: row[1].split()[0] for row in rows}


def _read_devkit(path: Path, synsets: Path | None) -> dict[int, str]:
    """{number of the image: WNID}: line n has the class number, from 1, of image n."""
    if synsets is None:
        raise InvalidInputError(
            f"{path.name} holds class numbers, which need WNIDs: expected the devkit's {META} or map_clsloc.txt, or a "
            f"text of one WNID per line in the order of ILSVRC2012_ID (synsets.txt), beside it; or use {KAGGLE}"
        )
    wnids = _read_meta(synsets) if synsets.suffix == ".mat" else _read_synsets(synsets)
    labels = {}
    for line, text in enumerate(_read_lines(path), 1):
        if not text.isdecimal() or not 1 <= int(text) <= len(wnids):
            raise InvalidInputError(
                f"line {line} of {path} is {text!r}; expected a class number from 1 to {len(wnids)} ({synsets.name})"
            )
        labels[line] = wnids[int(text) - 1]
    return labels


def _read_synsets(path: Path) -> list[str]:
    """WNIDs in the order of class numbers: the first word of each line."""
    wnids = [line.split()[0] for line in _read_lines(path)]
    wrong = next((wnid for wnid in wnids if not re.fullmatch(r"n\d{8}", wnid)), None)
    if wrong is not None or not wnids or len(set(wnids)) != len(wnids):
        reason = f"found {wrong!r}" if wrong else "it is empty" if not wnids else "a WNID appears twice"
        raise InvalidInputError(f"{path}: expected a WNID such as n01440764 first on each line; {reason}")
    if wnids[0] == _FIRST_BY_NAME and _FIRST_BY_ID in wnids:
        raise InvalidInputError(
            f"{path} lists WNIDs by the alphabet, but {DEVKIT} numbers them by ILSVRC2012_ID, from {_FIRST_BY_ID}: "
            f"labels would be wrong; give {KAGGLE}, or the devkit's map_clsloc.txt or {META}"
        )
    return wnids


def _read_meta(path: Path) -> list[str]:
    """WNIDs of the devkit's MATLAB file, by ILSVRC2012_ID; inner nodes of the tree have children and no images."""
    import importlib

    try:
        loadmat = importlib.import_module("scipy.io").loadmat
    except ImportError:
        raise InvalidInputError(
            f"{path} is a MATLAB file: pip install scipy to read it, or give a text of one WNID per line in its order"
        ) from None
    try:
        synsets = loadmat(path, squeeze_me=True)["synsets"]
        leaves = [row for row in synsets if int(row["num_children"]) == 0]
        return [str(row["WNID"]) for row in sorted(leaves, key=lambda row: int(row["ILSVRC2012_ID"]))]
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise InvalidInputError(f"{path} holds no table of synsets: {reason_of(error)}") from None


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

"""Where images come from: a path or the embedded glyphs, the layout of a folder, list or archive, and its splits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from actstore.errors import InvalidInputError
from actstore.images.class_folders import is_folder, list_folder, sorted_entries
from actstore.images.glyphs import GlyphSet
from actstore.images.ilsvrc import label_validation, looks_like_validation
from actstore.images.image_set import (
    SPLITS,
    ImageItem,
    ImageSet,
    Listing,
    Loadable,
    Skipped,
    has_image_ending,
    image_set,
    printable,
)
from actstore.images.listing import ENDINGS as LIST_ENDINGS
from actstore.images.listing import list_file
from actstore.images.tars import list_tar, list_tar_splits
from actstore.images.tiny_imagenet import without_labels

GLYPHS = re.compile(r"glyphs(?::(\d+)x(\d+)x(\d+))?")
SOURCES = "expected a folder, a tar, a list (.csv, .parquet), or glyphs:CLASSESxTRAINxVAL such as glyphs:1000x40x10"
_ILSVRC_TARS = {"ILSVRC2012_img_train": "train", "ILSVRC2012_img_val": "val"}
_DEVKIT = "ILSVRC2012_devkit"
_KAGGLE_IMAGES = Path("ILSVRC") / "Data" / "CLS-LOC"
LAYOUTS = (
    "expected CLASS/*.jpg, train/CLASS/*.jpg and val/CLASS/*.jpg, ILSVRC's or Tiny-ImageNet's own layout, "
    "a .tar of class folders, or a .csv or .parquet with columns path,label"
)


def open_images(
    text: str, ground_truth: Path | None = None, synsets: Path | None = None
) -> Mapping[str, ImageSet[Loadable]]:
    """Split name -> images of `glyphs`, `glyphs:1000x40x10` (classes, train and val images of each) or a path.

    A folder that is called glyphs is read as `./glyphs`. ground_truth, synsets: see `find_images`.
    """
    matched = GLYPHS.fullmatch(text)
    if matched is not None:
        return GlyphSet(*(int(number) for number in matched.groups() if number is not None)).image_sets()
    if text.startswith("glyphs:"):
        raise InvalidInputError(f"{SOURCES}, got {text!r}")
    if not text:
        raise InvalidInputError(f"no images named; {SOURCES}")
    return find_images(Path(text), ground_truth, synsets)


def find_images(
    root: Path, ground_truth: Path | None = None, synsets: Path | None = None
) -> dict[str, ImageSet[ImageItem]]:
    """Split name -> its images, sorted by class and path (a list keeps its own order).

    ground_truth, synsets: the label files of a flat ILSVRC validation folder, where they are not
    found beside it. Nothing is decoded: a file that only claims to be an image is met when it is read.
    """
    if not root.exists():
        raise InvalidInputError(f"no such file or folder: {root}; {LAYOUTS}")
    for file in (ground_truth, synsets):
        if file is not None and not file.is_file():
            raise InvalidInputError(f"no such file: {file}")
    listed = _find(root)
    if list(listed) == ["train"] and looks_like_validation(listed["train"][0]):
        listed = {"val": listed["train"]}  # root is the validation folder itself
    places = [root if root.is_dir() else root.parent, *list(root.resolve().parents)[:3]]
    sets = {}
    for split, (items, skipped) in listed.items():
        is_flat = split != "train" and bool(items) and all(item.label is None for item in items)
        if looks_like_validation(items) or (ground_truth is not None and is_flat):
            folders = [root / name for name, meaning in SPLITS.items() if meaning == split]
            items, unknown = label_validation(items, [*places, *folders], ground_truth, synsets)
            skipped = [*skipped, *unknown]
        items = without_labels(split, items, listed["train"][0] if "train" in listed else ())
        sets[split] = image_set(items, skipped)
    if not any(images.items for images in sets.values()):
        skipped = [file for images in sets.values() for file in images.skipped]
        why = f" ({len(skipped)} skipped, such as {skipped[0][0]}: {skipped[0][1]})" if skipped else ""
        raise InvalidInputError(f"no images in {root}{why}; {LAYOUTS}")
    return {split: images for split, images in sets.items() if images.items or images.skipped}


def _find(root: Path) -> Mapping[str, Listing]:
    if root.is_dir():
        return _find_in_folder(root)
    if root.suffix in LIST_ENDINGS:
        return list_file(root)
    if ".tar" in root.suffixes or root.suffix == ".tgz":
        return list_tar_splits(root)
    raise InvalidInputError(f"{root} is not a folder of images; {LAYOUTS}")


def _find_in_folder(root: Path) -> dict[str, Listing]:
    if (root / _KAGGLE_IMAGES).is_dir():
        root = root / _KAGGLE_IMAGES
    sources: dict[str, Path] = {}
    unused: Skipped = []
    for entry in sorted_entries(root):
        name = entry.name.removesuffix(".tar")
        is_place = is_folder(entry) or entry.name.endswith(".tar")
        split = (SPLITS.get(name) or _ILSVRC_TARS.get(name)) if is_place else None
        if split is None:
            if (is_place and not name.startswith(_DEVKIT)) or has_image_ending(entry.name):
                unused.append((printable(entry.name), "beside the folders of splits"))
            continue
        if split in sources:
            raise InvalidInputError(
                f"split {split!r} is there twice: {sources[split]} and {entry.path}; move one of them away"
            )
        sources[split] = Path(entry.path)
    if not {"train", "val"} & set(sources):
        return {"train": list_folder(root)}
    order = sorted(sources, key=list(SPLITS.values()).index)
    listed = {split: (list_folder if sources[split].is_dir() else list_tar)(sources[split]) for split in order}
    listed[order[0]][1].extend(unused)
    return listed

"""Where images come from: a path or the embedded glyphs, the layout of a folder, list or archive, and its splits; the
images that the rows of a split were made of; and HTML pages that show them, which hold everything, style, script and
images, and load nothing from elsewhere."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from actstore.errors import ActstoreError, InvalidInputError, reason_of
from actstore.images.class_folders import holding, is_folder, list_folder, list_tar, list_tar_splits, sorted_entries
from actstore.images.glyphs import glyph_sets
from actstore.images.image_set import (
    ImageItem,
    ImageSet,
    Item,
    Listing,
    Loadable,
    ending_fault,
    has_image_ending,
    id_fault,
    image_set,
    label_validation,
    looks_like_validation,
    printable,
    without_labels,
)
from actstore.images.split_names import LEFT_OUT, ORDER, split_of, splits_among
from actstore.spec import Json
from actstore.split import Split

ENDINGS = (".csv", ".parquet")
Row = tuple[str, str | None, str]  # path, label, split
_PROBED = 20


def list_file(path: Path) -> dict[str, Listing]:
    """Split name -> images in the order of the file. Paths are relative to the file's folder, or absolute."""
    splits: dict[str, Listing] = {}
    folder = str(path.parent)
    names: dict[str, str] = {}  # one object per label, not one per row
    for path_text, label, split in _rows(path):
        items, skipped = splits.setdefault(split, ([], []))
        name = "/".join(part for part in path_text.split("/") if part not in ("", "."))
        if reason := _fault(name, label):
            skipped.append((printable(name or path_text), reason))
        else:
            shared = None if label is None else names.setdefault(label, label)
            items.append(ImageItem(name, shared, "/" if path_text.startswith("/") else folder))
    _refuse_wrong_folder(path, splits)
    return splits


def _fault(name: str, label: str | None) -> str | None:
    if fault := id_fault(name):
        return fault
    if label is not None and (fault := id_fault(label)):
        return f"its label {label!r} is refused: {fault}"
    return ending_fault(name)


def _refuse_wrong_folder(path: Path, splits: dict[str, Listing]) -> None:
    """A list whose paths start elsewhere would otherwise fail image by image."""
    for items, _ in splits.values():
        probed = items[:_PROBED]
        # os.path: a name too long for the disk does not exist, where Path raises
        if probed and not any(os.path.exists(item.path) for item in probed):  # noqa: PTH110
            raise InvalidInputError(
                f"{path}: none of its first {len(probed)} images exist, such as {probed[0].path}; "
                "paths are expected relative to the folder of the list"
            )


def _rows(path: Path) -> Iterator[Row]:
    try:
        for row in _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path):
            label, split = ("" if row.get(key) is None else str(row[key]).strip() for key in ("label", "split"))
            yield str(row["path"] or ""), label or None, split or "train"
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"{path} is not a csv in UTF-8: {reason_of(error)}") from None
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}") from None


def _csv_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True, skipinitialspace=True)
        _columns_of(path, reader.fieldnames or [])
        for row in reader:
            if row["label"] is None or None in row:
                raise InvalidInputError(
                    f"line {reader.line_num} of {path} does not have as many columns as the header; "
                    "quote paths that hold a comma"
                )
            yield row


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=_columns_of(path, file.schema_arrow.names)):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise InvalidInputError(f"{path} is not a readable parquet file: {reason_of(error)}") from None


def _columns_of(path: Path, names: Sequence[str]) -> list[str]:
    """Those of a list, without which it is none."""
    if not {"path", "label"} <= set(names):
        raise InvalidInputError(
            f"{path} has columns {', '.join(names) or 'none'}; expected a header path,label[,split]"
        )
    return [name for name in ("path", "label", "split") if name in names]


GLYPHS = re.compile(r"glyphs(?::(\d+)x(\d+)x(\d+)(?:@(\d+(?:\.\d+)?))?)?")
SOURCES = "expected a folder, a tar, a list (.csv, .parquet), or glyphs:CLASSESxTRAINxVAL such as glyphs:1000x40x10"
_DEVKIT = "ILSVRC2012_devkit"
_KAGGLE_IMAGES = Path("ILSVRC") / "Data" / "CLS-LOC"
LAYOUTS = (
    "expected CLASS/*.jpg, train/CLASS/*.jpg and val/CLASS/*.jpg, ILSVRC's or Tiny-ImageNet's own layout, "
    "a .tar of class folders, or a .csv or .parquet with columns path,label[,split]"
)


def open_images(
    text: str, ground_truth: Path | None = None, synsets: Path | None = None, val: float | None = None
) -> Mapping[str, ImageSet[Loadable]]:
    """Split name -> images of `glyphs`, `glyphs:1000x40x10` (classes, train and val images of each),
    `glyphs:1000x40x10@3` (distorted three times as far, see `glyph_sets`) or a path.

    A folder that is called glyphs comes before the embedded ones. ground_truth, synsets: see `find_images`. val: a
    share of each class that is held out of train.
    """
    sets = _open(text, ground_truth, synsets)
    return sets if val is None else hold_out(sets, val)


def hold_out(sets: Mapping[str, ImageSet[Item]], share: float) -> dict[str, ImageSet[Item]]:
    """This share of each class of train becomes val. Hashes of ids choose it: the same images give the same splits."""
    if not 0 < share < 1:
        raise InvalidInputError(f"the share held out for val must be between 0 and 1, got {share}")
    if "val" in sets or "train" not in sets:
        raise InvalidInputError(f"a share for val is taken of train alone, got splits {', '.join(sets)}; leave it out")
    train, by_class = sets["train"], defaultdict[str | None, list[str]](list)
    for item in train.items:
        by_class[item.label].append(item.id)
    held: set[str] = set()
    for ids in by_class.values():
        count = min(len(ids) - 1, max(1, round(share * len(ids))))
        held.update(sorted(ids, key=lambda one: hashlib.sha256(one.encode()).digest())[:count])
    parts = ([item for item in train.items if (item.id in held) == is_val] for is_val in (False, True))
    kept, val = (replace(train, items=items, val_share=share) for items in parts)
    return {"train": kept, "val": replace(val, skipped=[]), **{name: sets[name] for name in sets if name != "train"}}


def _open(text: str, ground_truth: Path | None, synsets: Path | None) -> Mapping[str, ImageSet[Loadable]]:
    matched = GLYPHS.fullmatch(text)
    if matched is not None and not Path(text).exists():
        *counts, distortion = matched.groups()
        sizes = [int(number) for number in counts if number is not None]
        return glyph_sets(*sizes, distortion=float(distortion or 1))
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
            folders = [folder for folder in (root.iterdir() if root.is_dir() else ()) if split_of(folder.name) == split]
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
    if root.suffix in ENDINGS:
        return list_file(root)
    if ".tar" in root.suffixes or root.suffix == ".tgz":
        return list_tar_splits(root)
    raise InvalidInputError(f"{root} is not a folder of images; {LAYOUTS}")


def _find_in_folder(root: Path) -> dict[str, Listing]:
    if (root / _KAGGLE_IMAGES).is_dir():
        root = root / _KAGGLE_IMAGES
    entries = sorted_entries(root)
    places = {entry.name: entry for entry in entries if is_folder(entry) or entry.name.endswith(".tar")}
    names = [name for name in places if not name.startswith(_DEVKIT)]
    found = splits_among(names, lambda name: holding(places[name]))
    if not found:
        return {"train": list_folder(root)}
    sources: dict[str, Path] = {}
    for name, split in sorted(found.items(), key=lambda one: ORDER.index(one[1])):
        path = Path(places[name].path)
        if split in sources:
            raise InvalidInputError(
                f"split {split!r} is there twice: {sources[split]} and {path}; move one of them away"
            )
        sources[split] = path
    listed = {split: (list_folder if path.is_dir() else list_tar)(path) for split, path in sources.items()}
    beside = [entry for entry in entries if entry.name not in found
              and (entry.name in names or (entry.name not in places and has_image_ending(entry.name)))]  # fmt: skip
    for entry in beside:
        of_images = entry.name in names and holding(entry) != "nothing"
        reason = LEFT_OUT if of_images else "beside the folders of splits"
        listed[next(iter(sources))][1].append((printable(entry.name), reason))
    return listed


def image_sources(split: Split) -> list[Mapping[str, Json]]:
    """What `actstore build` was told of each part of a split; none for imported rows."""
    origins = [source.get("from", source) for source in split.committed.sources]  # of rows chosen from a store
    return [source for source in origins if source.get("kind") == "images"]


class SplitImages:
    """folder: where ids are paths, for rows that were imported; None: as the split records."""

    def __init__(self, split: Split, folder: Path | None = None) -> None:
        self.split = split
        self.folder = folder

    @cached_property
    def _items(self) -> Mapping[str, Loadable]:
        """Id -> image."""
        items: dict[str, Loadable] = {}
        for source in image_sources(self.split):
            sets = open_images(str(source["path"]), val=source.get("val_share"))
            name = str(source.get("split", self.split.name))
            items |= {item.id: item for item in sets[name].items} if name in sets else {}
        if not items:
            raise ActstoreError(f"the images of {self.split.path} are not at hand")
        return items

    def load(self, row: int) -> Image.Image:
        """The image of a row in mode RGB; an ActstoreError where it cannot be read."""
        name = self.split.ids[row]
        if self.folder is not None:
            return ImageItem(name, None, str(self.folder)).load()
        if name not in self._items:
            raise ActstoreError(f"the image {name} of {self.split.path} is not at hand")
        return self._items[name].load()

    def thumbnail(self, row: int, side: int) -> Image.Image:
        """The centre square, (side, side) pixels."""
        return ImageOps.fit(self.load(row), (side, side))


def html_page(
    title: str, about: str, content: str, style: Traversable, script: Traversable | None = None, kind: str = ""
) -> str:
    """title, about: plain text. content: HTML. kind: by which the file is known later, such as "actstore audit"."""
    generator = f'<meta name="generator" content="{escape(kind)}">\n' if kind else ""
    code = "" if script is None else f"<script>{script.read_text('utf-8')}</script>\n"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{generator}<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{style.read_text("utf-8")}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>
<p>{escape(about)}</p></header>
<main>
{content}
</main>
{code}</body>
</html>
"""


def jpeg_bytes(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "JPEG", quality=80)
    return data.getvalue()


def data_address(data: bytes, kind: str = "jpeg") -> str:
    """What stands in `src` for an image inside of the page."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"

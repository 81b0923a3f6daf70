"""Class folders: a folder, or a tar, per class; or images without classes in one flat folder. Images inside of a tar
are read in place: it is indexed once, and they are then found by offset and size; it may hold class folders, class tars
or WebDataset shards."""

from __future__ import annotations

import json
import os
import posixpath
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from actstore.errors import InvalidInputError
from actstore.images.image_set import (
    ANNOTATIONS,
    DEVKIT,
    ENDINGS,
    KAGGLE,
    META,
    SYNSET_LISTS,
    ImageItem,
    Listing,
    Skipped,
    ending_fault,
    has_image_ending,
    id_fault,
    is_flat,
    label_flat,
    printable,
    read_bytes,
)
from actstore.images.split_names import LEFT_OUT, ORDER, Holding, split_of, splits_among
from actstore.spec import has_stray, is_stray

_SIDE_FILES = (".cls", ".json")  # WebDataset: the label of key.jpg in key.cls, or in key.json
_JSON_LABELS = ("label", "cls", "class")


@dataclass
class TarIndex:
    """Images of an archive by path, without labels; beside: files that hold labels, by path: .cls, .json, and
    Tiny-ImageNet's annotations."""

    images: list[ImageItem] = field(default_factory=list)
    beside: dict[str, ImageItem] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=list)
    folders: set[str] = field(default_factory=set)  # those with an entry of their own


def list_tar(path: Path) -> Listing:
    """A tar that is one split as a whole."""
    return _labelled(index_tar(path))


def list_tar_splits(path: Path) -> dict[str, Listing]:
    """Split name -> images of a tar with train/CLASS/*.jpg, or with CLASS/*.jpg, which is "train"."""
    index = _without_wrapper(index_tar(path))
    depths: dict[str, int] = {}  # of the image that lies deepest
    for item in index.images:
        top, depth = item.id.split("/")[0], item.id.count("/")
        if depth:
            depths[top] = max(depth, depths.get(top, depth))

    def holding(name: str) -> Holding:
        return "folders" if depths[name] > 1 else "images"

    found = splits_among(sorted(depths), holding)
    if not found:
        return {"train": _labelled(index)}
    splits: dict[str, Listing] = {}
    for name, split in sorted(found.items(), key=lambda one: ORDER.index(one[1])):
        items, skipped = _labelled(_below(index, f"{name}/"))
        before = splits.setdefault(split, ([], []))
        before[0].extend(items)
        before[1].extend(skipped)
    next(iter(splits.values()))[1].extend((name, LEFT_OUT) for name in depths if name not in found)
    return splits


def list_class_tar(path: Path) -> Listing:
    """The tar of one class, named after it; or a WebDataset shard, which brings its labels."""
    name = path.name.removesuffix(".tar")
    if fault := id_fault(name):
        return [], [(printable(name), fault)]
    index = index_tar(path)
    items, skipped = label_by_side_files(index)
    if not items:
        items = [replace(item, label=name) for item in index.images]
    left_out = [(f"{name}/{inside}", reason) for inside, reason in [*index.skipped, *skipped]]
    if not items:
        left_out.append((path.name, "no images in this tar"))
    return [replace(item, id=f"{name}/{item.id.removeprefix(name + '/')}") for item in items], left_out


def _without_wrapper(index: TarIndex) -> TarIndex:
    """Leaves out one folder around all classes, as in dataset/CLASS/*.jpg or dataset/train/CLASS/*.jpg."""
    tops = {item.id.split("/")[0] for item in index.images}
    has_side_files = any(name.lower().endswith(_SIDE_FILES) for name in index.beside)
    is_kept = len(tops) != 1 or any(map(split_of, tops)) or has_side_files
    if is_kept or any(item.id.count("/") < 2 for item in index.images):
        return index
    return _below(index, f"{tops.pop()}/")


def _below(index: TarIndex, prefix: str) -> TarIndex:
    """The part of an index inside of a folder, with paths relative to it."""
    start = len(prefix)
    return TarIndex(
        [replace(item, id=item.id[start:]) for item in index.images if item.id.startswith(prefix)],
        {name[start:]: file for name, file in index.beside.items() if name.startswith(prefix)},
        [(name[start:], reason) for name, reason in index.skipped if name.startswith(prefix)],
        {name[start:] for name in index.folders if name.startswith(prefix)},
    )


def _labelled(index: TarIndex) -> Listing:
    """Labels from side files where there are any, else from the first folder of each path; a flat tar has none."""
    items, skipped = label_by_side_files(index)
    if items:
        return items, [*index.skipped, *skipped]
    if not any("/" in item.id for item in index.images):
        return index.images, index.skipped
    labels: dict[str, str] = {}  # one object per label, not one per image
    items, skipped = [], list(index.skipped)
    for item in index.images:
        first, slash, _ = item.id.partition("/")
        if slash:
            items.append(replace(item, label=labels.setdefault(first, first)))
        else:
            skipped.append((item.id, "not in a class folder"))
    if is_flat(items) and ANNOTATIONS in index.beside:
        file = index.beside[ANNOTATIONS]
        items, unknown = label_flat(items, read_bytes(file), f"{ANNOTATIONS} of {file.source}")
        skipped += unknown
    empty = sorted(name for name in index.folders if name not in labels and name not in ("", ".") and "/" not in name)
    return items, [*skipped, *((printable(name), "empty class folder") for name in empty)]


def index_tar(path: Path) -> TarIndex:
    """One pass over the headers; a tar inside of it (ILSVRC's train set) is a folder of its name."""
    index = TarIndex()
    try:
        _add_members(index, path, 0, path.stat().st_size, "")
    except tarfile.TarError as error:
        raise InvalidInputError(f"{path}: {_why_not(path, error)}") from None
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}") from None
    index.images.sort(key=lambda item: item.id.split("/"))
    return index


def _add_members(index: TarIndex, path: Path, start: int, stop: int, prefix: str) -> None:
    """Those of the archive in bytes [start, stop) of a file."""
    places: dict[str, tuple[int, int]] = {}  # of plain files, for hard links to them
    archive = str(path)
    for member in _members(path, start):
        inside = posixpath.normpath(member.name).lstrip("/")
        name, target = prefix + inside, posixpath.normpath(member.linkname)
        if has_stray(part for part in name.split("/") if part not in {".", ".."}):
            continue
        if member.isdir():
            index.folders.add(name)
        elif member.islnk() and target in places:
            _add_file(index, ImageItem(name, None, archive, *places[target]))
        elif not member.isreg() or member.issparse():
            index.skipped.append((printable(name), "not a plain file inside of the archive"))
        elif member.offset_data + member.size > stop:
            raise tarfile.ReadError("unexpected end of data")
        elif name.endswith(".tar") and not prefix:
            end = member.offset_data + member.size
            _add_members(index, path, member.offset_data, end, name.removesuffix(".tar") + "/")
        else:
            places[inside] = (member.offset_data, member.size)
            _add_file(index, ImageItem(name, None, archive, member.offset_data, member.size))


def _members(path: Path, start: int) -> Iterator[tarfile.TarInfo]:
    with path.open("rb") as file:
        file.seek(start)  # offsets of members are counted from the beginning of the file all the same
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it keeps every header: 1.3 GB for ILSVRC
                yield member


def _add_file(index: TarIndex, item: ImageItem) -> None:
    if fault := id_fault(item.id):
        index.skipped.append((printable(item.id), fault))
    elif posixpath.basename(item.id) == ANNOTATIONS or item.id.lower().endswith(_SIDE_FILES):
        index.beside[item.id] = item
    elif fault := ending_fault(item.id):
        index.skipped.append((item.id, fault))
    else:
        index.images.append(item)


def label_by_side_files(index: TarIndex) -> Listing:
    """WebDataset: each image with the label that lies beside it; no images where no label does."""
    labelled, skipped = [], []
    for item in index.images:
        stem = posixpath.splitext(item.id)[0]
        side = next((index.beside[stem + ending] for ending in _SIDE_FILES if stem + ending in index.beside), None)
        label = None if side is None else _label_in(side)
        if side is None:
            skipped.append((item.id, f"no {stem}.cls or .json beside it"))
        elif label is not None and (fault := id_fault(label)):
            skipped.append((item.id, f"its label in {side.id} is refused: {fault}"))
        else:
            labelled.append(replace(item, label=label))
    return (labelled, skipped) if labelled else ([], [])


def _label_in(side: ImageItem) -> str | None:
    try:
        text = read_bytes(side).decode("utf-8-sig").strip()
        if side.id.endswith(".cls"):
            return text or None
        facts = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{side.source}: {side.id} holds no label: {error}") from None
    label = next((facts[key] for key in _JSON_LABELS if key in facts), None) if isinstance(facts, dict) else facts
    return None if label is None else str(label)


def _why_not(path: Path, error: Exception) -> str:
    with path.open("rb") as file:
        start = file.read(6)
    packed = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK": "zip"}
    for magic, name in packed.items():
        if start.startswith(magic):
            return f"compressed with {name}, which cannot be read in place; expected a plain .tar, so unpack it first"
    return f"damaged or truncated tar archive ({error}); copy or download it again"


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
        items, unknown = label_flat(items, read_bytes(ImageItem(ANNOTATIONS, None, str(folder))), str(annotations))
        skipped += unknown
    if items:
        return items, skipped + [(printable(entry.name), "not in a class folder") for entry in loose]
    loose_items, left_out = _loose_images(folder, loose)
    return loose_items, skipped + left_out


def holding(entry: os.DirEntry[str]) -> Holding:
    """What lies in a folder; a tar counts as one of class folders, unread."""
    if not is_folder(entry):
        return "folders"
    inside = sorted_entries(Path(entry.path))
    # a link counts unread: it may lead in a circle
    deeper = (one.name.endswith(".tar") or (is_folder(one) and (one.is_symlink() or holding(one) != "nothing"))
              for one in inside)  # fmt: skip
    if any(deeper):
        return "folders"
    return "images" if any(has_image_ending(one.name) and not is_folder(one) for one in inside) else "nothing"


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

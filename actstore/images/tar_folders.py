"""Splits and classes of the images inside of a tar: class folders, class tars, or WebDataset shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from actstore.images.image_set import SPLITS, Found, id_fault, printable, read_bytes
from actstore.images.tar_index import TarIndex, index_tar, label_by_side_files
from actstore.images.tiny_imagenet import ANNOTATIONS, is_flat, label_flat


def list_tar(path: Path) -> Found:
    """A tar that is one split as a whole."""
    return _labelled(index_tar(path))


def list_tar_splits(path: Path) -> dict[str, Found]:
    """Split name -> images of a tar with train/CLASS/*.jpg, or with CLASS/*.jpg, which is "train"."""
    index = _without_wrapper(index_tar(path))
    tops = {item.id.split("/")[0] for item in index.images if "/" in item.id}
    names = [name for name in SPLITS if name in tops]
    if not any(SPLITS[name] in ("train", "val") for name in names):
        return {"train": _labelled(index)}
    found: dict[str, Found] = {}
    for name in names:
        items, skipped = _labelled(_below(index, f"{name}/"))
        before = found.setdefault(SPLITS[name], ([], []))
        before[0].extend(items)
        before[1].extend(skipped)
    return found


def list_class_tar(path: Path) -> Found:
    """The tar of one class, named after it; or a WebDataset shard, which brings its labels."""
    name = path.name.removesuffix(".tar")
    if fault := id_fault(name):
        return [], [(printable(name), fault)]
    index = index_tar(path)
    items, skipped = label_by_side_files(index)
    is_shard = bool(items)
    if not is_shard:
        items, skipped = index.images, []
    left_out = [(f"{name}/{inside}", reason) for inside, reason in [*index.skipped, *skipped]]
    if not items:
        left_out.append((path.name, "no images in this tar"))
    return [
        replace(item, id=f"{name}/{item.id.removeprefix(name + '/')}", label=item.label if is_shard else name)
        for item in items
    ], left_out


def _without_wrapper(index: TarIndex) -> TarIndex:
    """Leaves out one folder around all classes, as in dataset/CLASS/*.jpg or dataset/train/CLASS/*.jpg."""
    tops = {item.id.split("/")[0] for item in index.images}
    if len(tops) != 1 or tops & set(SPLITS) or index.side or any(item.id.count("/") < 2 for item in index.images):
        return index
    return _below(index, f"{tops.pop()}/")


def _below(index: TarIndex, prefix: str) -> TarIndex:
    """The part of an index inside of a folder, with paths relative to it."""
    start = len(prefix)
    return TarIndex(
        [replace(item, id=item.id[start:]) for item in index.images if item.id.startswith(prefix)],
        {name[start:]: side for name, side in index.side.items() if name.startswith(prefix)},
        {name[start:]: one for name, one in index.annotations.items() if name.startswith(prefix)},
        [(name[start:], reason) for name, reason in index.skipped if name.startswith(prefix)],
        {name[start:] for name in index.folders if name.startswith(prefix)},
    )


def _labelled(index: TarIndex) -> Found:
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
    if is_flat(items) and ANNOTATIONS in index.annotations:
        file = index.annotations[ANNOTATIONS]
        items, unknown = label_flat(items, read_bytes(file), f"{ANNOTATIONS} of {file.source}")
        skipped += unknown
    empty = sorted(name for name in index.folders if name not in labels and name not in ("", ".") and "/" not in name)
    return items, [*skipped, *((printable(name), "empty class folder") for name in empty)]

"""Which folders of images are splits by their names, and which are classes that only have such a name; and what is said
where that is left open."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal

SPLITS = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
ILSVRC_TARS = {"ILSVRC2012_img_train": "train", "ILSVRC2012_img_val": "val"}
ORDER = ("train", "val", "test")
LEFT_OUT = "a folder of images beside the folders of splits"  # why it is skipped
Holding = Literal["nothing", "images", "folders"]  # images: all lie in the folder itself; folders: some lie deeper
_USUAL = ("train", "val", "valid", "validation", "test")  # come before others for the same split


def split_of(name: str) -> str | None:
    """The split that a name means as a whole: Training -> train."""
    name = name.removesuffix(".tar")
    return ILSVRC_TARS.get(name) or SPLITS.get(name.casefold())


def split_in(name: str) -> tuple[str, str] | None:
    """The split that the first or the last word of a name means, and the rest: seg_train -> train, seg."""
    words = [word for word in re.split(r"[\W\d_]+", name.removesuffix(".tar").casefold()) if word]
    if name.startswith("ILSVRC2012_") or sum(word in SPLITS for word in words) != 1:
        return None
    for place in {0, len(words) - 1}:
        if words[place] in SPLITS:
            return SPLITS[words[place]], " ".join(words[:place] + words[place + 1 :])
    return None


def splits_among(names: Iterable[str], holding: Callable[[str], Holding]) -> dict[str, str]:
    """Name -> split, of the folders or tars that are splits; none where all of them are classes.

    A class may be called `test` or `training`: beside folders with other names, splits are those that hold folders
    of classes. holding: what lies in a folder; asked only where names leave it open.
    """
    every = list(names)
    whole = _usual_first({name: split for name in every if (split := split_of(name)) is not None})
    parts = {name: found for name in every if split_of(name) is None and (found := split_in(name)) is not None
             and found[0] not in whole.values()}  # fmt: skip
    wider = _without_lone_dev(whole | {name: split for name, (split, _) in parts.items()})
    trains = [name for name, split in wider.items() if split == "train"]
    alike = parts and trains and len({rest for _, rest in parts.values()}) == 1
    is_plain = alike and (len(set(wider.values())) > 1 or not _others(every, wider, holding))
    if is_plain and all(holding(name) == "folders" for name in trains):
        return wider
    whole = _without_lone_dev(whole)
    if not {"train", "val"} & set(whole.values()):
        return {}
    if len({whole[name] for name in _USUAL if name in whole}) > 1:  # not by chance: they may be flat
        return whole
    if any(holding(name) == "folders" for name in whole) or not _others(every, whole, holding):
        return whole
    return {}


def _usual_first(splits: dict[str, str]) -> dict[str, str]:
    """Without other names of a split that has a usual one: train/ val/ dev/ has the splits train and val."""

    def is_usual(name: str) -> bool:
        bare = name.removesuffix(".tar")
        return bare in _USUAL or bare in ILSVRC_TARS

    there = {split for name, split in splits.items() if is_usual(name)}
    return {name: split for name, split in splits.items() if split not in there or is_usual(name)}


def _without_lone_dev(splits: dict[str, str]) -> dict[str, str]:
    """`dev` is a split only beside a train; else it is a class."""
    if "train" in splits.values():
        return splits
    return {name: split for name, split in splits.items() if name.removesuffix(".tar").casefold() != "dev"}


def layout_warnings(split: str, ids: Iterable[tuple[str, str | None]], skipped: Iterable[tuple[str, str]]) -> list[str]:
    """What a reader must know of folders that may be meant otherwise. ids: with the label of each image."""
    folders: dict[str, set[str]] = {}
    for name, label in ids:
        if label is not None and name.count("/") > 1 and name.startswith(f"{label}/"):
            folders.setdefault(label, set()).add(name.rpartition("/")[0])
    likely = [name for name in folders if split_of(name) or split_in(name)]
    merged = [name for name, inside in folders.items() if len(inside) > 1 and name not in likely]
    lines = []
    if left_out := [name for name, reason in skipped if reason == LEFT_OUT]:
        lines.append(f"{_listed(left_out)} beside the folders of splits hold images and are left out; put them into "
                     "the folder of a split, or give a list path,label,split")  # fmt: skip
    if likely:
        lines.append(f"{_listed(likely)} of {split} may be meant as splits, but are taken as classes; call folders of "
                     "splits train, val and test, with class folders in each")  # fmt: skip
    if merged:
        deep = f"{merged[0]} has {len(folders[merged[0]])}, such as {min(folders[merged[0]])}"
        lines.append(f"{len(merged):,} class folders of {split} hold further folders ({deep}), which are taken as one "
                     "class each; to keep them apart, move them up or give a list path,label")  # fmt: skip
    return lines


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _others(names: Iterable[str], splits: Iterable[str], holding: Callable[[str], Holding]) -> bool:
    return any(holding(name) != "nothing" for name in set(names) - set(splits))

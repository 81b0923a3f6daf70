"""One image and a set of them: what every layout of images on disk comes down to."""

from __future__ import annotations

import errno
import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from PIL import Image

from actstore.errors import InvalidInputError, StorageError, UnreadableImageError
from actstore.images.decode import ImageFacts, decode, decode_with_facts
from actstore.layout.texts import encode_ids

ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif")
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}  # name -> split
Skipped = list[tuple[str, str]]  # (id, reason)


_THIS_FILE_ONLY = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP,
}  # fmt: skip


class Loadable(Protocol):
    """What an extractor needs of an image, whether it lies in a file or is drawn."""

    @property
    def id(self) -> str: ...
    @property
    def label(self) -> str | None: ...
    def load(self, at_least: int | None = None) -> Image.Image: ...
    def load_with_facts(self) -> tuple[Image.Image, ImageFacts]: ...


@dataclass(frozen=True, slots=True)
class ImageItem:
    """An image in a file or inside of an archive; 1.3 million take about 200 MB.

    id: POSIX path relative to the split. source: the folder that holds id, or, where offset is not
    negative, the archive that holds the image at [offset, offset + size). Both are shared strings.
    """

    id: str
    label: str | None
    source: str
    offset: int = -1
    size: int = -1

    @property
    def path(self) -> Path:
        """The file that is read: the image itself, or its archive."""
        return Path(self.source) / self.id if self.offset < 0 else Path(self.source)

    def load(self, at_least: int | None = None) -> Image.Image:
        """The image in mode RGB; see `decode`."""
        return decode(read_bytes(self), self.id, at_least)

    def load_with_facts(self) -> tuple[Image.Image, ImageFacts]:
        return decode_with_facts(read_bytes(self), self.id)


Listing = tuple[list[ImageItem], Skipped]
Item = TypeVar("Item", bound=Loadable, covariant=True)


@dataclass(frozen=True)
class ImageSet(Generic[Item]):
    """The images of one split, the sorted names of the classes they have, and what was left out and why."""

    items: Sequence[Item]
    classes: list[str]
    skipped: Skipped


def read_bytes(item: ImageItem) -> bytes:
    """The bytes of an image as they are stored."""
    try:
        with item.path.open("rb") as file:
            if item.offset < 0:
                return file.read()
            file.seek(item.offset)
            data = file.read(item.size)
    except OSError as error:
        if error.errno in _THIS_FILE_ONLY:
            where = "" if item.offset < 0 else f"{item.path} "  # the id of a file is its name already
            raise UnreadableImageError(f"{item.id}: {where}cannot be read: {error.strerror}") from None
        # a failing disk must stop a build, not thin it out
        raise StorageError(f"cannot read {item.path}: {error.strerror or error}") from error
    if len(data) != item.size:
        raise UnreadableImageError(
            f"{item.id}: {item.path} ends inside of it, {len(data)} of {item.size} bytes are there"
        )
    return data


def labelled(items: Sequence[ImageItem], labels: Iterable[str | None], file: str, where: str) -> Listing:
    """The images with these labels; those without one are skipped. file, where: name and place of the labels."""
    kept: list[ImageItem] = []
    skipped: Skipped = []
    for item, label in zip(items, labels, strict=True):
        if label is None:
            skipped.append((item.id, f"{file} has no label for it"))
        else:
            kept.append(replace(item, label=label))
    if not kept:
        raise InvalidInputError(f"{where} labels none of the {len(items):,} images, such as {items[0].id}")
    return kept, skipped


def has_image_ending(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def ending_fault(name: str) -> str | None:
    """Why a file is passed over by its name; None for an image."""
    return None if has_image_ending(name) else f"not an image by its ending {Path(name).suffix!r}"


def id_fault(name: str) -> str | None:
    """Why a name cannot be an id; None if it can."""
    if name and name.isprintable() and ".." not in name:  # nearly always: millions of names pass here
        return None
    try:
        encode_ids([name])
    except InvalidInputError as error:
        return str(error).rpartition(": ")[2]
    return None


def printable(name: str) -> str:
    """A name that is safe to print and to keep: control characters and broken Unicode are escaped."""
    escaped = "".join(
        character.encode("unicode_escape").decode() if ord(character) < 32 or ord(character) == 127 else character
        for character in name
    )
    return escaped.encode("utf-8", "backslashreplace").decode()


def image_set(items: Sequence[ImageItem], skipped: Skipped) -> ImageSet[ImageItem]:
    """Check that ids and classes are distinct, and sort out the classes."""
    classes = sorted({item.label for item in items if item.label is not None})
    _refuse_doubles("class", classes)
    _refuse_doubles("image id", (item.id for item in items))
    return ImageSet(items, classes, skipped)


def classes_train_lacks(classes: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Split -> its classes that the split `train` does not have, sorted; splits without any are left out.

    classes: those of every split. Nothing is lacking where there is no train, or none of its images has a label.
    """
    known = set(classes.get("train", ()))
    lacking = {split: sorted(set(names) - known) for split, names in classes.items()}
    return {split: names for split, names in lacking.items() if names and known}


def lacks_text(split: str, names: Sequence[str]) -> str:
    """Of a split with classes that train lacks."""
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    what = "a class" if len(names) == 1 else f"{len(names):,} classes"
    return f"{split} has {what} that train lacks: {', '.join(map(repr, names[:5]))}{more}"


def _refuse_doubles(what: str, names: Iterable[str]) -> None:
    """Also those that look the same: é as one code point, or as e and an accent."""
    seen: dict[str, str] = {}
    for name in names:
        key = name if name.isascii() else unicodedata.normalize("NFC", name)
        if key in seen:
            how = "" if seen[key] == name else ", in two Unicode spellings of the same text"
            raise InvalidInputError(f"{what} {name!r} appears twice{how}; rename or remove one of them")
        seen[key] = name


def same_bytes(items: Sequence[ImageItem]) -> list[list[ImageItem]]:
    """Groups of two and more with the same bytes, in order. Files that cannot be read or are empty are in none: why
    is said when they are decoded."""
    by_size: dict[int, list[ImageItem]] = defaultdict(list)
    for item in items:
        by_size[_size(item)].append(item)
    groups: dict[tuple[int, str], list[ImageItem]] = defaultdict(list)
    for size, alike in by_size.items():
        if size > 0 and len(alike) > 1:  # only these are read
            for item in alike:
                try:
                    groups[size, hashlib.sha256(read_bytes(item)).hexdigest()].append(item)
                except UnreadableImageError:
                    continue
    order = {item: place for place, item in enumerate(items)}
    copies = [group for group in groups.values() if len(group) > 1]
    return sorted(copies, key=lambda group: order[group[0]])


def _size(item: ImageItem) -> int:
    try:
        return item.path.stat().st_size if item.offset < 0 else item.size
    except OSError:
        return 0

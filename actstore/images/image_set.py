"""One image and a set of them: what every layout of images on disk comes down to; and labels that published data sets
keep apart: ILSVRC's, and Tiny-ImageNet's (val/images/*.JPEG with val_annotations.txt)."""

from __future__ import annotations

import csv
import errno
import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from PIL import Image

from actstore.errors import InvalidInputError, StorageError, UnreadableImageError, reason_of
from actstore.images.decode import ImageFacts, decode, decode_with_facts
from actstore.layout.columns import encode_ids

ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif")
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
    """The images of one split, the sorted names of the classes they have, and what was left out and why. val_share: of
    each class that was held out of train, if this split was made so."""

    items: Sequence[Item]
    classes: list[str]
    skipped: Skipped
    val_share: float = 0.0

    def listing_hash(self) -> str:
        """Names the images by their ids and labels; what is in the files is not read."""
        return hashlib.sha256("".join(f"{item.id}\n{item.label}\n" for item in self.items).encode()).hexdigest()


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
        with suppress(OSError):
            by_size[item.path.stat().st_size if item.offset < 0 else item.size].append(item)
    groups: dict[tuple[int, str], list[ImageItem]] = defaultdict(list)
    for size, alike in by_size.items():
        if size > 0 and len(alike) > 1:  # only these are read
            for item in alike:
                with suppress(UnreadableImageError):
                    groups[size, hashlib.sha256(read_bytes(item)).hexdigest()].append(item)
    order = {item: place for place, item in enumerate(items)}
    copies = [group for group in groups.values() if len(group) > 1]
    return sorted(copies, key=lambda group: order[group[0]])


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

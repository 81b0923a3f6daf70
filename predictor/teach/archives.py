"""Downloads (the classifier, ONNX with or without the network, a session as a zip), and a zip that someone dropped.

The zip has images in a folder per category, which any tool that reads class folders reads, labels.json that says what
each is, and the classifier. Names of folders are made safe, labels.json has them as they are. A dropped zip is
read with limits, entry by entry; nothing is ever unpacked under a name of its own.
"""

from __future__ import annotations

import io
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.extraction.forward import load_recorded
from actstore.images.decode import readable_formats
from actstore.images.image_set import has_image_ending
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import load_classifier, save_classifier
from predictor.classifier.export import export_onnx, export_with_backbone
from predictor.teach.actions import Action, Example, RefusalError, State, parse_name
from predictor.teach.security import MB, Limits
from predictor.teach.session import ImageFolder, key_of, row_key

VERSION = 1
LABELS, CLASSIFIER, IMAGES = "labels.json", "classifier.safetensors", "images"
ZIP, MODEL = "session.zip", "model.onnx"  # MODEL: with the network
MEDIA_TYPES = {
    **dict.fromkeys((CLASSIFIER, "classifier.onnx", MODEL), "application/octet-stream"), ZIP: "application/zip",
}  # fmt: skip
_ENDINGS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "TIFF": "tif",
            "PPM": "ppm", "AVIF": "avif", "HEIF": "heic"}  # fmt: skip

LABELS_BYTES = 16 * MB
_FAULTS = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, struct.error, NotImplementedError,
    RuntimeError, EOFError, OSError, ValueError,
)  # fmt: skip


def write_file(path: Path, classifier: Classifier, state: State, images: ImageFolder, weights: Path | None) -> None:
    """By its name, one of MEDIA_TYPES; other files may come to lie beside it. classifier and state: of the same moment.
    weights: of the network, where they have moved."""
    if path.name == ZIP:
        _write_zip(path, classifier, state, images)
        return
    if path.name == CLASSIFIER:
        save_classifier(path, classifier)
        return
    if not classifier.categories:
        raise RefusalError(409, "there is no category yet to take away")
    try:
        if path.name == MODEL:  # with a network of the graph's own: the service goes on with its one meanwhile
            network = load_recorded(classifier.about.get("network", {}), weights)
            export_with_backbone(classifier, network, path)
        else:
            export_onnx(classifier, path)
    except InvalidInputError as error:
        raise RefusalError(409, str(error)) from None  # such as a package that is not installed


def network_of(classifier: Classifier) -> Mapping[str, Any]:
    """Which network the activations are of."""
    record = classifier.about.get("network", {})
    return {key: record.get(key) for key in ("backbone", "weights_sha256", "layer")} | {"dim": classifier.dim}


def _write_zip(path: Path, classifier: Classifier, state: State, images: ImageFolder) -> None:
    labels: list[dict[str, Any]] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:  # images are compressed already
        for (name, examples), folder in zip(state.categories.items(), _folder_names(state.categories), strict=True):
            labels.append({"name": name, "examples": []})
            for place, example in enumerate(examples.values()):
                entry: dict[str, Any] = {"key": example.key, "name": example.name}
                if example.has_image:
                    data = images.read(example.key)
                    entry["file"] = f"{IMAGES}/{folder}/{example.key[:16]}.{_ending(data)}"
                    archive.writestr(entry["file"], data)
                else:
                    entry["row"] = place  # among the category's examples in the classifier
                labels[-1]["examples"].append(entry)
        about = {"version": VERSION, "network": network_of(classifier), "categories": labels}
        archive.writestr(LABELS, json.dumps(about, indent=1, ensure_ascii=False))
        save_classifier(path.with_name(CLASSIFIER), classifier)
        archive.write(path.with_name(CLASSIFIER), CLASSIFIER)


def _folder_names(categories: Iterable[str]) -> list[str]:
    """A folder for each category that every system can make, none twice."""
    folders: list[str] = []
    for place, name in enumerate(categories):
        safe = "".join(letter if letter.isalnum() or letter in " -+()" else "_" for letter in name).strip()
        taken = {folder.casefold() for folder in folders}
        folders.append(safe if safe and safe.casefold() not in taken else f"{safe}_{place}")
    return folders


def _ending(data: bytes) -> str:
    with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
        return _ENDINGS.get(image.format or "", "img")


@dataclass(frozen=True)
class Listed:
    """An example that an archive names: in a file of it, or as a row of its classifier. key: the file's sha256.
    category: as it is kept here. theirs: as the archive and its classifier call it."""

    category: str
    name: str
    file: str | None = None
    key: str | None = None
    row: int | None = None
    theirs: str = ""


class ArchiveReader:
    """Checked as a whole when it is opened: names, sizes and labels. Images are read one at a time."""

    def __init__(self, path: Path, limits: Limits, network: Mapping[str, Any]) -> None:
        """path: in a folder of its own, where other files may be made. network: that of the session."""
        self._path, self._limits, self._network = path, limits, network
        with _faults():
            self._archive = zipfile.ZipFile(path)
        try:
            with _faults():
                listed = [info for info in self._archive.infolist() if not info.is_dir()]
                self._entries = {str(PurePosixPath(info.filename)): info for info in listed}  # ./a//b.jpg is a/b.jpg
            self._check()
            self.examples = self._labels()
        except BaseException:
            self._archive.close()
            raise

    def content(self, listed: Listed) -> bytes | Tensor:
        """An image's file, or the activation (dim,) of an example without one."""
        if listed.file is None:
            rows = self._support.get(listed.theirs, ())
            if listed.row is None or not 0 <= listed.row < len(rows):
                raise RefusalError(
                    422, f"the zip names an example of {listed.category!r} that its classifier does not hold"
                )
            return rows[listed.row].clone()
        data = self._read(listed.file, self._limits.image_bytes)
        if listed.key is not None and key_of(data) != listed.key:
            raise RefusalError(422, f"{LABELS} of the zip names another image than {listed.file} is")
        return data

    def key(self, listed: Listed) -> str:
        """As it will be kept."""
        if listed.key is not None:
            return listed.key
        content = self.content(listed)
        return key_of(content) if isinstance(content, bytes) else row_key(content)

    def merge(self, examples: Sequence[Example]) -> Action:
        """examples: one for each that the zip names, in its order."""
        by_category: dict[str, list[Example]] = {}
        for listed, example in zip(self.examples, examples, strict=True):
            by_category.setdefault(listed.category, []).append(example)
        adds = (Action("add", name, examples=tuple(mine)) for name, mine in by_category.items())
        return Action("merge", categories=tuple(adds))

    @cached_property
    def _support(self) -> dict[str, Tensor]:
        """Examples without an image are of one network alone: that of the classifier beside them."""
        if CLASSIFIER not in self._entries:
            raise RefusalError(422, "the zip names examples without an image, but holds no classifier with them")
        path = self._path.with_name(CLASSIFIER)
        path.write_bytes(self._read(CLASSIFIER, self._limits.archive_bytes))
        theirs = load_classifier(path)
        if network_of(theirs) != self._network:
            raise RefusalError(409, "the zip has examples without an image, of another network than this session's")
        return theirs.support

    def close(self) -> None:
        self._archive.close()

    def _check(self) -> None:
        limits, entries = self._limits, self._entries.values()
        if len(entries) > limits.examples + 2:
            raise RefusalError(413, f"the zip has more than {limits.examples:,} files")
        if sum(info.file_size for info in entries) > limits.unpacked_bytes:
            raise RefusalError(413, f"the zip unpacks to more than {limits.unpacked_bytes / MB:,.0f} MB")
        for info in entries:
            path = PurePosixPath(info.filename)
            if path.is_absolute() or ".." in path.parts or "\\" in info.filename or ":" in "".join(path.parts[:1]):
                raise RefusalError(422, "the zip has a name that leads out of it, and is refused as a whole")
            if info.flag_bits & 1:
                raise RefusalError(422, "the zip is encrypted; send one that is not")

    def _labels(self) -> list[Listed]:
        if LABELS not in self._entries:
            return self._class_folders()
        listed: list[Listed] = []
        try:
            for category in json.loads(self._read(LABELS, LABELS_BYTES))["categories"]:
                name = parse_name(category["name"])
                listed += [_listed(name, category["name"], example) for example in category["examples"]]
                if len(listed) > self._limits.examples:
                    raise RefusalError(413, f"{LABELS} of the zip names more than {self._limits.examples:,} examples")
        except RefusalError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RefusalError(422, f"{LABELS} of the zip is not as `ppa teach` writes it") from None
        named = [example.file for example in listed if example.file is not None]
        if missing := [file for file in named if file not in self._entries]:
            raise RefusalError(422, f"{LABELS} of the zip names {missing[0]!r}, which it does not hold")
        if len(set(named)) < len(named):  # a large file named thousands of times would be unpacked as often
            raise RefusalError(422, f"{LABELS} of the zip names a file twice; an image is one example")
        return listed

    def _class_folders(self) -> list[Listed]:
        """Somebody else's zip: the folder that holds an image names its category."""
        paths = [PurePosixPath(name) for name in self._entries if has_image_ending(name) and "__MACOSX" not in name]
        listed = [Listed(parse_name(path.parent.name), path.name, str(path)) for path in paths if path.parent.name]
        if not listed:
            raise RefusalError(422, f"the zip has neither {LABELS} nor images in a folder for each category")
        return listed

    def _read(self, name: str, limit: int) -> bytes:
        """At most that much, whatever the zip says about its size."""
        with _faults(), self._archive.open(self._entries[name]) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise RefusalError(413, f"{PurePosixPath(name).name} in the zip has more than {limit / MB:,.0f} MB")
        return data


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except RefusalError:
        raise
    except _FAULTS:
        raise RefusalError(415, "this is no zip that can be read; is it whole?") from None


def _listed(category: str, theirs: str, one: dict[str, Any]) -> Listed:
    file, row, key = one.get("file"), one.get("row"), one.get("key")
    if (file is None) == (row is None) or not isinstance(file, str | None) or not isinstance(row, int | None):
        raise ValueError("an example is either a file or a row")
    return Listed(category, str(one.get("name", ""))[:200], file, str(key) if file else None, row, theirs)

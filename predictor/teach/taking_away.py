"""Files to take away: the classifier, ONNX with or without the network, and a session as a zip.

The zip has images in a folder per category, which any tool that reads class folders reads, labels.json that says what
each is, and the classifier. Names of folders are made safe, labels.json has them as they are.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from actstore.errors import InvalidInputError
from actstore.extraction.recorded_network import load_recorded
from actstore.images.decode import readable_formats
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import save_classifier
from predictor.classifier.export import export_onnx
from predictor.classifier.export_images import export_with_backbone
from predictor.teach.images import ImageFolder
from predictor.teach.limits import RefusalError
from predictor.teach.state import State

VERSION = 1
LABELS, CLASSIFIER, IMAGES = "labels.json", "classifier.safetensors", "images"
ZIP, MODEL = "session.zip", "model.onnx"  # MODEL: with the network
MEDIA_TYPES = {
    **dict.fromkeys((CLASSIFIER, "classifier.onnx", MODEL), "application/octet-stream"), ZIP: "application/zip",
}  # fmt: skip
_ENDINGS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "TIFF": "tif",
            "PPM": "ppm", "AVIF": "avif", "HEIF": "heic"}  # fmt: skip


def write_file(path: Path, classifier: Classifier, state: State, images: ImageFolder, weights: Path | None) -> None:
    """By its name, one of MEDIA_TYPES; other files may come to lie beside it. classifier and state: of the same moment.
    weights: of the network, where they have moved."""
    if path.name == ZIP:
        _write_zip(path, classifier, state, images)
    elif path.name == CLASSIFIER:
        save_classifier(path, classifier)
    else:
        write_onnx(path, classifier, weights)


def write_onnx(path: Path, classifier: Classifier, weights: Path | None) -> None:
    if not classifier.categories:
        raise RefusalError(409, "there is no category yet to take away")
    try:
        if path.name == MODEL:  # with a network of the graph's own: the desk goes on with its one meanwhile
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

"""A session as a zip: images in a folder per category, labels.json that says what each is, and the classifier.

Any tool that reads class folders reads `images/`; names of folders are made safe, labels.json has them as they are.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from actstore.images.image_formats import readable_formats
from predictor.classifier.classifier import Classifier
from predictor.classifier.classifier_file import save_classifier
from predictor.teach.images import ImageFolder
from predictor.teach.state import State

VERSION = 1
LABELS, CLASSIFIER, IMAGES = "labels.json", "classifier.safetensors", "images"
_ENDINGS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "TIFF": "tif",
            "PPM": "ppm", "AVIF": "avif", "HEIF": "heic"}  # fmt: skip


def write_archive(path: Path, classifier: Classifier, state: State, images: ImageFolder) -> None:
    """classifier and state: of the same moment."""
    labels: list[dict[str, Any]] = []
    beside = path.with_name(f"{path.name}.classifier")
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:  # images are compressed already
            for category, folder in zip(state, folder_names(state), strict=True):
                listed: list[dict[str, Any]] = []
                for place, example in enumerate(category.examples):
                    entry: dict[str, Any] = {"key": example.key, "name": example.name}
                    if example.has_image:
                        data = images.read(example.key)
                        entry["file"] = f"{IMAGES}/{folder}/{example.key[:16]}.{_ending(data)}"
                        archive.writestr(entry["file"], data)
                    else:
                        entry["row"] = place  # among the category's examples in the classifier
                    listed.append(entry)
                labels.append({"name": category.name, "examples": listed})
            about = {"version": VERSION, "network": network_of(classifier), "categories": labels}
            archive.writestr(LABELS, json.dumps(about, indent=1, ensure_ascii=False))
            save_classifier(beside, classifier)
            archive.write(beside, CLASSIFIER)
    finally:
        beside.unlink(missing_ok=True)


def network_of(classifier: Classifier) -> Mapping[str, Any]:
    """Which network the activations are of."""
    record = classifier.about.get("network", {})
    return {key: record.get(key) for key in ("backbone", "weights_sha256", "layer")} | {"dim": classifier.dim}


def folder_names(state: State) -> list[str]:
    """A folder for each category that every system can make, none twice."""
    found: list[str] = []
    for place, category in enumerate(state):
        safe = "".join(letter if letter.isalnum() or letter in " -+()" else "_" for letter in category.name).strip()
        taken = {name.casefold() for name in found}
        found.append(safe if safe and safe.casefold() not in taken else f"{safe}_{place}")
    return found


def _ending(data: bytes) -> str:
    with Image.open(io.BytesIO(data), formats=readable_formats()) as image:
        return _ENDINGS.get(image.format or "", "img")

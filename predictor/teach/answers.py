"""What the page is told: what an image is taken for, the nearest examples, how well the examples are told apart, a map.

By the code that the command line uses: image bytes -> activation -> categories.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import actstore
from actstore.compute.device import parse_device
from actstore.errors import ActstoreError, UnreadableImageError
from actstore.extraction.forward import forward, load_recorded, move_to
from actstore.images.decode import decode, readable_formats
from actstore.images.opening import SplitImages, image_sources
from actstore.split import Split
from predictor.classifier.checking import check_support
from predictor.classifier.classifier import Classifier
from predictor.classifier.predictions import predict_rows
from predictor.classifier.unknown import UNKNOWN
from predictor.figures.class_map import tsne
from predictor.teach.actions import RefusalError, State
from predictor.teach.session import thumbnail

TOP = 5
SOFTNESS = 0.05  # of familiarity, a cosine: how far from the threshold the bar of unknown is at 73 or 27%
NEAREST, LOOKED_AT = 4, 256
ALIKE = 0.10  # the mean probability for the other category, from which on a pair is named without a mistake
PAIRS = 5
Way = Literal["axes", "neighbours"]
MOST_NEIGHBOURS = 3_000  # points beyond which t-SNE takes longer than anyone waits


class Network:
    """The network that a classifier's activations come from."""

    def __init__(self, record: Mapping[str, Any], weights: Path | None = None, device: str = "auto") -> None:
        self.backbone, self.weights = load_recorded(record, weights), weights
        self._device, self._views = parse_device(device), int(record.get("views") or 1)
        move_to(self._device, self.backbone)
        self.activation(Image.new("RGB", (self.side, self.side)))  # the first pass is several times slower

    @property
    def side(self) -> int:
        """Pixels of the square that it reads."""
        return self.backbone.transform.crop

    def activation(self, image: Image.Image) -> Tensor:
        """An image in mode RGB -> (dim,)."""
        pixels = self.backbone.transform.views(image, self._views)[None]  # (1, views, 3, side, side)
        rows = forward(self.backbone, pixels, self._device)
        return next(iter(rows.values()))[0].clone()


def open_image(data: bytes, name: str, pixels: int) -> Image.Image:
    """The image in mode RGB; refused before it is decoded where it has more pixels than that."""
    try:
        with Image.open(io.BytesIO(data), formats=readable_formats()) as header:
            count = header.width * header.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        count = pixels + 1
    except Exception:  # noqa: BLE001  # damaged in any way: `decode` says how
        count = 0
    if count > pixels:
        raise RefusalError(413, f"{name}: more than {pixels / 1e6:,.0f} million pixels; send a smaller copy")
    try:
        return decode(data, name)
    except UnreadableImageError as error:
        raise RefusalError(415, str(error)) from None


def bars(classifier: Classifier, activation: Tensor) -> dict[str, Any]:
    """What `ppa predict` says of an activation (dim,), as bars; none where nothing is known yet."""
    if not classifier.categories:
        return {"bars": [], "unknown": True}
    (prediction,) = predict_rows(classifier, ["asked"], activation[None], TOP)
    shown: list[dict[str, Any]] = [
        {"category": one.category, "probability": one.probability, "taught": one.category in classifier.support}
        for one in prediction.top
    ]
    threshold = classifier.threshold
    if threshold is None:
        return {"bars": shown, "unknown": False}
    short = threshold - float(classifier.familiarity(activation[None])[0])
    bar = {"category": UNKNOWN, "probability": 1 / (1 + math.exp(-short / SOFTNESS)), "unknown": True}
    return {"bars": with_unknown(shown, bar, short > 0), "unknown": short > 0}


def with_unknown(bars: list[dict[str, Any]], bar: dict[str, Any], is_unknown: bool) -> list[dict[str, Any]]:
    """First where nothing fits, else after what is more probable; five in all. The bar says how far an image is from
    all that is known, half where it is just at the threshold; the others share what is known, as in `ppa predict`."""
    place = 0 if is_unknown else max(1, sum(other["probability"] > bar["probability"] for other in bars))
    return [*bars[:place], bar, *bars[place:]][:TOP] if place < TOP else [*bars[: TOP - 1], bar]


def review(classifier: Classifier, state: State) -> dict[str, Any]:
    """What `ppa check` finds: cells of the confusion matrix with the examples in them, categories with a single
    example, and pairs alike.

    said: the columns, the taught categories and those base categories that an example was taken for.
    """
    counts = {name: len(rows) for name, rows in classifier.support.items()}
    single = [name for name, count in counts.items() if count == 1]
    if len(classifier.categories) < 2 or max(counts.values(), default=0) < 2:
        return {"categories": [], "said": [], "right": 0, "total": 0, "cells": [], "single": single, "alike": []}
    check = check_support(classifier, top=1)
    keys = {name: list(examples) for name, examples in state.categories.items()}
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for checked in check.examples:
        truth = checked.category
        example = state.categories[truth][keys[truth][checked.example]]
        cells.setdefault((truth, checked.guesses[0].category), []).append(example.to_json())
    others = sorted({said for _, said in cells} - set(check.names))
    alike = [pair for pair in check.alike if pair.mistaken or pair.share >= ALIKE][:PAIRS]
    return {
        "categories": list(check.names), "said": [*check.names, *others], "single": single,
        "right": sum(checked.is_right for checked in check.examples), "total": len(check.examples),
        "cells": [{"truth": truth, "said": said, "examples": shown} for (truth, said), shown in cells.items()],
        "alike": [{"pair": [pair.one, pair.other], "share": pair.share} for pair in alike],
    }  # fmt: skip


def place_points(classifier: Classifier, state: State, way: Way) -> dict[str, Any]:
    """Examples and base categories in a plane: by principal axes at once, by t-SNE where one can wait. Directions, as
    the classifier compares them: what it makes of each example, and its rows of the base."""
    rule, rows = classifier.fitted, torch.cat([*classifier.support.values(), torch.empty(0, classifier.dim)])
    taught = rule.directions(rule.parameters(rows))[0]
    points = torch.cat([taught, rule.base_directions(classifier.base_parameters)])  # (n, dim) of unit length
    way = "neighbours" if way == "neighbours" and 4 <= len(points) <= MOST_NEIGHBOURS else "axes"
    placed = tsne(points.numpy()) if way == "neighbours" else principal_axes(points)
    scaled = np.round(placed / max(1e-12, float(np.abs(placed).max(initial=0.0))), 4).tolist()
    n = len(taught)
    return {
        "way": way,
        "examples": [{"category": name, **example.to_json(), "x": x, "y": y}
                     for (name, example), (x, y) in zip(state.examples(), scaled[:n], strict=True)],
        "base": [{"category": name, "x": x, "y": y}
                 for name, (x, y) in zip(classifier.base, scaled[n:], strict=True)],
    }  # fmt: skip


def principal_axes(points: Tensor) -> NDArray[np.float64]:
    """(n, dim) -> (n, 2), centred; the same for the same points, as the sign of an axis is fixed."""
    if not len(points):
        return np.zeros((0, 2))
    centred = (points - points.mean(0)).double()
    wide = centred.shape[1] > len(centred)
    square = centred @ centred.T if wide else centred.T @ centred
    values, vectors = torch.linalg.eigh(square)  # ascending
    axes = vectors[:, -2:].flip(1)
    placed = axes * values[-2:].flip(0).clamp_min(0).sqrt() if wide else centred @ axes
    if placed.shape[1] < 2:
        placed = torch.cat([placed, torch.zeros(len(placed), 2 - placed.shape[1], dtype=torch.float64)], 1)
    largest = placed.abs().argmax(0)
    signed: NDArray[np.float64] = (placed * placed.gather(0, largest[None]).sign()).numpy()
    return signed


def nearest_examples(
    activation: Tensor, state: State, asked: str, find: Callable[[str], Tensor]
) -> list[dict[str, Any]]:
    """The taught examples with the highest cosine, the image that is asked about left out. find: key -> (dim,)."""
    examples = [(name, example) for name, example in state.examples() if example.key != asked]
    if not examples:
        return []
    rows = torch.nn.functional.normalize(torch.stack([find(one.key) for _, one in examples]), dim=1)
    cosines = rows @ torch.nn.functional.normalize(activation, dim=0)  # (n,)
    order = cosines.argsort(descending=True, stable=True)[:NEAREST].tolist()
    return [
        {"category": examples[place][0], "similarity": float(cosines[place]), **examples[place][1].to_json()}
        for place in order
    ]


class BaseImages:
    """The store that the base categories come from, where it and its images are still at hand."""

    def __init__(self, split: Split, base: Sequence[str]) -> None:
        self._split, self._images, self._base = split, SplitImages(split), frozenset(base)

    def nearest(self, activation: Tensor) -> list[dict[str, Any]]:
        """Of the base categories alone: a store may hold rows of others, which are among those looked at."""
        scores, rows = self._split.search(activation[None].numpy(), k=min(LOOKED_AT, len(self._split)))
        names = [self._split.classes[label] if label >= 0 else "" for label in self._split.labels[rows[0]].tolist()]
        known = [
            {"category": name, "similarity": score, "row": row}
            for name, score, row in zip(names, scores[0].tolist(), rows[0].tolist(), strict=True)
            if name in self._base
        ]
        return known[:NEAREST]

    def thumbnail(self, row: int) -> bytes:
        if not 0 <= row < len(self._split):
            raise RefusalError(404, "there is no such image")
        try:
            return thumbnail(self._images.load(row))
        except (ActstoreError, OSError):
            raise RefusalError(404, "this image is not where the store was built from any more") from None

    def are_at_hand(self) -> bool:
        """Whether an image can be loaded; a few are tried, as some may be gone."""
        for row in {0, len(self._split) // 2, len(self._split) - 1}:
            with suppress(ActstoreError, OSError):
                self._images.load(row)
                return True
        return False


def find_base_images(about: Mapping[str, Any], base: Sequence[str]) -> BaseImages | None:
    """From what a classifier says about itself; None where the store or its images are not there any more."""
    path, content = about.get("store"), about.get("content")
    if not isinstance(path, str) or "://" in path or not Path(path).is_dir():
        return None
    try:
        rows = actstore.open(path)["train"]
        if not base or not len(rows) or rows.content != content or not image_sources(rows):
            return None
        images = BaseImages(rows, base)
        return images if images.are_at_hand() else None
    except (ActstoreError, OSError):
        return None

"""A network and its classifier at work: image bytes -> activation -> categories, by the code that the CLI uses."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from actstore.compute.device import parse_device
from actstore.errors import UnreadableImageError
from actstore.extraction.forward import ImageBatch, forward, move_to
from actstore.extraction.recorded_network import load_recorded
from actstore.images.decode import decode, readable_formats
from predictor.classifier.classifier import Classifier
from predictor.classifier.predictions import predict_rows
from predictor.classifier.unknown import UNKNOWN
from predictor.teach.limits import RefusalError
from predictor.teach.state import State

TOP = 5
SOFTNESS = 0.05  # of familiarity, a cosine: how far from the threshold the bar of unknown is at 73 or 27%


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
        rows = forward(self.backbone, ImageBatch(pixels, [0], [], []), self._device)
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


class Learner:
    """The classifier that follows a session's state.

    find: the activation (dim,) of a key. The constant between base and taught categories follows as in `ppa adapt`.
    """

    def __init__(self, start: Classifier, find: Callable[[str], Tensor]) -> None:
        self.classifier, self._find = start, find
        self.milliseconds = 0.0  # of the last change, without the network's pass

    def follow(self, state: State) -> None:
        """Learn the categories of a state anew, and predict their parameters."""
        examples = {
            name: torch.stack([self._find(key) for key in keys]) for name, keys in state.categories.items() if keys
        }
        began = time.perf_counter()
        for name in list(self.classifier.support):
            self.classifier.remove(name)
        if examples:
            self.classifier.restore(examples)
        self.classifier.balance()
        _ = self.classifier.rows, self.classifier.threshold  # here, so that the time says what learning costs
        self.milliseconds = 1e3 * (time.perf_counter() - began)

    def refuse_known(self, name: str) -> None:
        if name in self.classifier.base:
            raise RefusalError(409, f"the network knows {name!r} by itself; choose another name, such as 'my {name}'")

    def answer(self, activation: Tensor) -> dict[str, Any]:
        """What `ppa predict` says of an activation (dim,), as bars; none where nothing is known yet."""
        classifier = self.classifier
        if not classifier.categories:
            return {"bars": [], "unknown": True}
        (prediction,) = predict_rows(classifier, ["asked"], activation[None], TOP)
        bars = [
            {"category": one.category, "probability": one.probability, "taught": one.category in classifier.support}
            for one in prediction.top
        ]
        threshold = classifier.threshold
        if threshold is None:
            return {"bars": bars, "unknown": False}
        short = threshold - float(classifier.familiarity(activation[None])[0])
        bar = {"category": UNKNOWN, "probability": 1 / (1 + math.exp(-short / SOFTNESS)), "unknown": True}
        return {"bars": with_unknown(bars, bar, short > 0), "unknown": short > 0}


def with_unknown(bars: list[dict[str, Any]], bar: dict[str, Any], is_unknown: bool) -> list[dict[str, Any]]:
    """First where nothing fits, else after what is more probable; five in all. The bar says how far an image is from
    all that is known, half where it is just at the threshold; the others share what is known, as in `ppa predict`."""
    place = 0 if is_unknown else max(1, sum(other["probability"] > bar["probability"] for other in bars))
    return [*bars[:place], bar, *bars[place:]][:TOP] if place < TOP else [*bars[: TOP - 1], bar]

"""What images are taken for, as people and machines read it: text, records, a table for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.classifier.display_names import display
from predictor.classifier.linear_rows import ranked
from predictor.classifier.unknown import UNKNOWN


@dataclass(frozen=True)
class Guess:
    """category: its own name. shown: what people read."""

    category: str
    shown: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """top: the most probable categories, best first. is_unknown: nothing known fits, the first one neither."""

    image: str
    top: tuple[Guess, ...]
    is_unknown: bool = False

    @property
    def answer(self) -> str:
        return UNKNOWN if self.is_unknown else self.top[0].shown

    def to_json(self) -> dict[str, Any]:
        top = [
            {"category": guess.category, "display": guess.shown, "probability": guess.probability} for guess in self.top
        ]
        return {"image": self.image, "unknown": self.is_unknown, "top": top}


def predict_images(
    classifier: Classifier, images: Sequence[str], activations: Tensor, top: int = 5, only_mine: bool = False
) -> list[Prediction]:
    """images: the names of the rows (n, dim). only_mine: among taught categories alone, whose probabilities then sum
    to 1."""
    if only_mine and not classifier.support:
        raise InvalidInputError("no category was taught to this classifier, so none is left with --only-mine")
    scores = classifier.scores(activations)
    known = classifier.is_known(activations, only_mine).tolist()
    names = list(classifier.categories)
    if only_mine:
        scores, names = scores[:, len(classifier.base) :], names[len(classifier.base) :]
    shown = [display(classifier, name) for name in names]
    return [
        Prediction(image, tuple(Guess(names[place], shown[place], share) for place, share in row), not is_known)
        for image, row, is_known in zip(images, ranked(scores, top), known, strict=True)
    ]


def to_csv(predictions: Sequence[Prediction]) -> str:
    """A line for each image: its answer, then category, name and probability of each guess."""
    most = max((len(prediction.top) for prediction in predictions), default=0)
    parts = ("category", "name", "probability")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "answer", *(f"{part}_{rank}" for rank in range(1, most + 1) for part in parts)])
    for prediction in predictions:
        cells = [cell for guess in prediction.top for cell in (guess.category, guess.shown, f"{guess.probability:.6f}")]
        writer.writerow([prediction.image, prediction.answer, *cells])
    return text.getvalue()

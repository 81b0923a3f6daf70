"""Novel categories as a user sees them: an example, what its parameters resemble, what a test image is taken for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actstore.images.split_images import SplitImages
from actstore.split import Split
from actstore.streams.sampling import draw_support
from predictor.classifier.classifier import Classifier
from predictor.figures.class_map import unit_rows
from predictor.phi.calibration import Calibration, choose_for
from predictor.protocol.evaluation import class_means, take_float
from predictor.training.trained_phi import TrainedPhi

ROWS, NEIGHBOURS, TOP = 6, 3, 3
SIDE = 96  # pixels of an image in the sheet
Picture = NDArray[np.uint8]  # (height, width, 3)


@dataclass(frozen=True)
class SheetRow:
    """neighbours: (image, name, cosine of the parameters). top: (name, probability) of the test image."""

    name: str
    support: Picture
    neighbours: list[tuple[Picture, str, float]]
    query: Picture
    top: list[tuple[str, float]]


def make_sheet(
    trained: TrainedPhi, train: Split, test: Split, calibrations: Sequence[Calibration], rows: int = ROWS
) -> list[SheetRow]:
    """1 shot of every novel category (draw 0 of seed 0), of which some are shown, evenly spaced over their list and
    not chosen by how they look; the first test image of each is classified among all categories."""
    base, novel = trained.categories.base, trained.categories.novel
    index = train.class_index
    support = draw_support(index, np.array([index.position(name) for name in novel]), 1, 0, 0)[:, 0]
    learner = Classifier.from_means(trained.phi, base, class_means(train, base))
    examples = take_float(train, support)
    learner.adapt_all({name: examples[place] for place, name in enumerate(novel)})
    if calibrations:
        fit = choose_for(calibrations, 1)
        learner.calibrate(fit.novel_bias, fit.aggregate)
    directions = unit_rows(learner.rows.weight.numpy())
    pictures = {part.name: SplitImages(part) for part in (train, test)}
    found = []
    for place in np.unique(np.linspace(0, len(novel) - 1, min(rows, len(novel))).round().astype(int)).tolist():
        name = novel[place]
        similar = directions[: len(base)] @ directions[len(base) + place]
        nearest = np.argsort(-similar, kind="stable")[:NEIGHBOURS].tolist()
        row = int(test.class_index.rows(test.class_index.position(name))[0])
        shown = [(_picture(pictures[train.name], int(index.rows(index.position(base[one]))[0])), base[one],
                  float(similar[one])) for one in nearest]  # fmt: skip
        found.append(
            SheetRow(
                name,
                _picture(pictures[train.name], int(support[place])),
                shown,
                _picture(pictures[test.name], row),
                learner.predict(take_float(test, np.array([row])), TOP)[0],
            )
        )
    return found


def _picture(images: SplitImages, row: int) -> Picture:
    return np.asarray(images.thumbnail(row, SIDE), np.uint8)

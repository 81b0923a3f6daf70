"""Novel categories as a user sees them: an example, what its parameters resemble, what a test image is taken for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.images.opening import SplitImages
from actstore.split import Split
from actstore.streams.sampling import draw_support
from predictor.classifier.classifier import Classifier
from predictor.figures.class_map import unit_rows
from predictor.figures.style import GREEN, GREY, ORANGE, new_figure, readable
from predictor.protocol.base_categories import class_means, take_float
from predictor.protocol.calibration import Calibration
from predictor.training.trained_phi import TrainedPhi

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS, NEIGHBOURS, TOP = 6, 3, 3
SIDE = 96  # pixels of an image in the sheet
CAPTION = 96.0  # points: what a caption may be wide below a picture of 1.5 inches, so that none runs into the next
LONGEST = 150.0  # points of a name in the bars
SIZE = 8.5  # points of letters
Picture = NDArray[np.uint8]  # (height, width, 3)


@dataclass(frozen=True)
class SheetRow:
    """neighbours: (image, name, cosine of the parameters). top: (name, probability) of the test image."""

    name: str
    support: Picture
    neighbours: list[tuple[Picture, str, float]]
    query: Picture
    top: list[tuple[str, float]]


def make_sheet(trained: TrainedPhi, train: Split, test: Split, fit: Calibration | None) -> list[SheetRow]:
    """1 shot of every novel category (draw 0 of seed 0), of which some are shown, evenly spaced over their list and
    not chosen by how they look; the first test image of each is classified among all categories."""
    base, novel = trained.categories.base, trained.categories.novel
    index = train.class_index
    support = draw_support(index, np.array([index.position(name) for name in novel]), 1, 0, 0)[:, 0]
    learner = Classifier.from_means(trained.phi, base, class_means(train, base))
    examples = take_float(train, support)
    learner.adapt_all({name: examples[place] for place, name in enumerate(novel)})
    if fit is not None:
        learner.calibrate(fit.novel_bias, fit.aggregate)
    directions = unit_rows(learner.rows.weight.numpy())
    pictures = {part.name: SplitImages(part) for part in (train, test)}
    sheet = []
    for place in np.unique(np.linspace(0, len(novel) - 1, min(ROWS, len(novel))).round().astype(int)).tolist():
        similar = directions[: len(base)] @ directions[len(base) + place]
        nearest = np.argsort(-similar, kind="stable")[:NEIGHBOURS].tolist()
        first_rows = [int(index.rows(index.position(base[neighbour]))[0]) for neighbour in nearest]
        neighbours = [(_picture(pictures[train.name], row), base[neighbour], float(similar[neighbour]))
                      for neighbour, row in zip(nearest, first_rows, strict=True)]  # fmt: skip
        query = test.class_index.rows(test.class_index.position(novel[place]))[:1]
        top = learner.predict(take_float(test, query), TOP)[0]
        example = _picture(pictures[train.name], int(support[place]))
        sheet.append(SheetRow(novel[place], example, neighbours, _picture(pictures[test.name], int(query[0])), top))
    return sheet


def _picture(images: SplitImages, row: int) -> Picture:
    return np.asarray(images.thumbnail(row, SIDE), np.uint8)


def draw_sheet(rows: Sequence[SheetRow], how: str, what: str) -> Figure:
    """how: what classifies, such as "phi2, calibrated". what: the subject of the title, such as "Novel categories"."""
    beside = max(len(row.neighbours) for row in rows)
    figure = new_figure(1.5 * (beside + 2) + 3.4, 1.55 * len(rows) + 0.9)
    grid = figure.subplots(
        len(rows), beside + 3, squeeze=False, gridspec_kw={"width_ratios": [1] * (beside + 2) + [2.4]}
    )
    for line, row in zip(grid, rows, strict=True):
        _show(line[0], row.support, _short(row.name, CAPTION), "black")
        for axes, (picture, name, cosine) in zip(line[1:], row.neighbours, strict=False):
            _show(axes, picture, _short(name, CAPTION, f"  {cosine:.2f}"), "#555555")
        _show(line[beside + 1], row.query, _short(row.name, CAPTION), "black")
        _draw_top(line[beside + 2], row)
    grid[0][0].set_title("the one example", fontsize=10)
    wide = grid[0][1].annotate(
        "base categories of the most similar parameters (cosine)", (0, 1), xytext=(0, 6), fontsize=10,
        xycoords="axes fraction", textcoords="offset points",
    )  # fmt: skip
    wide.set_in_layout(False)  # it spans several pictures, which would otherwise be moved apart
    grid[0][beside + 1].set_title("test image", fontsize=10)
    grid[0][beside + 2].set_title("taken for (probability)", fontsize=10)
    figure.suptitle(f"{what} learnt from one example: {how}. Evenly spaced, not selected")
    return figure


def _short(name: str, widest: float, after: str = "") -> str:
    """A name as far as there is room for it, and what follows it whole. widest: in points."""
    shown = readable(name)
    if shown != name and len(shown) == 1:
        shown = f"{shown}  {name}"  # a character alone is hard to search for
    kept = len(shown)
    while kept > 1 and _width(_cut(shown, kept) + after) > widest:
        kept -= 1
    return _cut(shown, kept) + after


def _cut(text: str, kept: int) -> str:
    return text if kept == len(text) else text[:kept].rstrip() + "…"


def _width(text: str) -> float:
    """In points, as it is drawn: an i is a third of a W."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=SIZE).get_extents().width)


def _show(axes: Any, picture: Any, below: str, colour: str) -> None:
    axes.imshow(picture, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(below, fontsize=SIZE, color=colour)
    axes.spines[:].set_color(GREY)


def _draw_top(axes: Any, row: SheetRow) -> None:
    """Bars; what is right is green and ticked, so that colour is not needed to see it."""
    for place, (name, share) in enumerate(row.top):
        is_right = name == row.name
        axes.barh([place], [share], color=GREEN if is_right else ORANGE if place == 0 else GREY, height=0.7, alpha=0.65)
        axes.text(
            0.02, place, f"{'✓ ' if is_right else ''}{_short(name, LONGEST)}   {share:.0%}", va="center", fontsize=SIZE
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(len(row.top) - 0.4, -0.6)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)

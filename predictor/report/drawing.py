"""All figures of a run: each is drawn where its inputs are at hand, and otherwise says what is missing.

The sheet shows novel categories as a user sees them: an example, what its parameters resemble, what a test image is
taken for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import actstore
from actstore.errors import InvalidInputError, MissingInputError
from actstore.images.opening import SplitImages, image_sources
from actstore.split import Split
from actstore.streams.sampling import draw_support
from predictor.classifier.classifier import Classifier
from predictor.figures.accuracies import draw_curves, draw_methods, draw_shots
from predictor.figures.class_map import draw_channels, draw_class_maps, make_class_map, unit_rows
from predictor.figures.style import (
    GREEN,
    GREY,
    ORANGE,
    draw_inference,
    draw_runs,
    new_figure,
    readable,
    save_both,
)
from predictor.phi.network import impact, top_k_similarity
from predictor.protocol.base_categories import class_means, take_float
from predictor.protocol.calibration import Calibration, load_calibrations
from predictor.protocol.head import head_for, read_head
from predictor.protocol.results import CALIBRATED, LABELS
from predictor.protocol.setting import find_test_split
from predictor.report.run_folder import CLASS_MAP, RunFolder, read_records
from predictor.training.loop import read_log
from predictor.training.trained_phi import TrainedPhi, load_phi

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

ROWS, NEIGHBOURS, TOP = 6, 3, 3
SIDE = 96  # pixels of an image in the sheet
CAPTION = 96.0  # points: what a caption may be wide below a picture of 1.5 inches, so that none runs into the next
LONGEST = 150.0  # points of a name in the bars
SIZE = 8.5  # points of letters
Picture = NDArray[np.uint8]  # (height, width, 3)


@dataclass(frozen=True)
class Inputs:
    """What figures are made of: a run, and its splits where it has a store."""

    run: RunFolder
    train: Split | None = None
    test: Split | None = None

    @cached_property
    def trained(self) -> list[TrainedPhi]:
        return [load_phi(path) for path in self.run.phis]

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        if self.run.table is None:
            raise MissingInputError("no table of `ppa eval --out table.json`")
        rows = read_records(self.run.table)
        if not rows or "top1_few" not in rows[0]:
            raise InvalidInputError(f"{self.run.table} must be a table that `ppa eval --out` wrote")
        return rows

    def phi(self, *kinds: str) -> TrainedPhi:
        """The first run of one of these kinds, in the order of the kinds."""
        runs = [trained for kind in kinds for trained in self.trained if trained.kind == kind]
        if not runs:
            raise MissingInputError(f"no run of `ppa train --phi {kinds[0]}`")
        return runs[0]

    def rows(self) -> Split:
        if self.train is None:
            raise MissingInputError("no store")
        return self.train

    def head_weight(self, base: Sequence[str], dim: int) -> Tensor | None:
        return None if self.run.head is None else head_for(read_head(self.run.head), base, dim).weight


@dataclass(frozen=True)
class Drawn:
    """path: of the PNG, None where it was skipped; why: what is missing then."""

    name: str
    path: Path | None
    why: str = ""


def draw_run(
    run: RunFolder, out: Path | None = None, train: str = "train", test: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Drawn]:  # fmt: skip
    """Every figure that a run's folder has the inputs of, as PNG and SVG in `out` (the run's figures/ by default).

    train, test: splits of its store; by default the test images are those of val or test. progress: told the name of
    each figure before it is drawn.
    """
    inputs = Inputs(run)
    if run.store is not None:
        store = actstore.open(run.store)
        inputs = Inputs(run, store[train], find_test_split(store, train, test))
    folder, drawn = out or run.figures, []
    for name, (_, draw) in FIGURES.items():
        if progress is not None:
            progress(name)
        try:
            drawn.append(Drawn(name, save_both(draw(inputs, folder), folder, name)))
        except MissingInputError as missing:
            drawn.append(Drawn(name, None, str(missing)))
    if all(figure.path is None for figure in drawn):
        why = "; ".join(f"{figure.name}: {figure.why}" for figure in drawn)
        raise InvalidInputError(f"nothing of {run.folder} could be drawn: {why}")
    return drawn


def _class_maps(inputs: Inputs, out: Path) -> Figure:
    """All categories by their means; by w_large^pt where a head is at hand (base categories), else by phi(mean)."""
    train, trained = inputs.rows(), inputs.phi("phi2", "phi1", "phi2star")
    base = trained.categories.base
    names = (*base, *trained.categories.validation, *trained.categories.novel)
    means, weight = class_means(train, names), inputs.head_weight(base, train.dim)
    shown, what = range(len(base)), "w_large^pt"
    if weight is None:
        shown, weight, what = range(len(names)), trained.phi(means), f"{LABELS[trained.kind]}(mean)"
    class_map = make_class_map(names, len(base), means.numpy(), shown, weight.numpy(), what)
    class_map.save(out / CLASS_MAP)
    return draw_class_maps(class_map)


def _channels(inputs: Inputs, out: Path) -> Figure:
    first = inputs.phi("phi1")
    weight = first.phi.layers[0].get_parameter("weight").detach()
    head = inputs.head_weight(first.categories.base, first.phi.spec.dim)
    similarities: dict[str, Any] = {}
    if head is not None:
        for trained in inputs.trained:
            layer = trained.phi.layers[0].get_parameter("weight")
            similarities.setdefault(trained.kind, top_k_similarity(impact(layer), impact(head)))
    return draw_channels(weight.numpy(), similarities)


def _training(inputs: Inputs, out: Path) -> Figure:
    logs = {path.name: lines for path in inputs.run.phis if (lines := read_log(path))}
    if not logs:
        raise MissingInputError("no run of `ppa train` with a log")
    return draw_runs(logs)


def _methods(inputs: Inputs, out: Path) -> Figure:
    counts = [row["shots"] for row in inputs.records if row["shots"] != "all"]
    return draw_methods(inputs.records, min(counts, key=int, default="all"))


def _curves(inputs: Inputs, out: Path) -> Figure:
    rows = [row for row in inputs.records if row.get("curve") and row["shots"] != "all"]
    if not rows:
        raise MissingInputError("a table of this version of `ppa eval`, which has the curves")
    return draw_curves(inputs.records, min((row["shots"] for row in rows), key=int))


def _shots(inputs: Inputs, out: Path) -> Figure:
    if len({row["shots"] for row in inputs.records} - {"all"}) < 2:
        raise MissingInputError("a table of several numbers of shots (`ppa eval --shots 1,2,3`)")
    return draw_shots(inputs.records)


def _inference(inputs: Inputs, out: Path) -> Figure:
    if inputs.run.bench is None:
        raise MissingInputError("no table of `ppa bench-inference`")
    results = [result for result in read_records(inputs.run.bench) if result.get("value") is not None]
    if not results:
        raise MissingInputError(f"{inputs.run.bench} holds no measurement")
    return draw_inference(results)


def _sheet(inputs: Inputs, out: Path) -> Figure:
    train, trained = inputs.rows(), inputs.phi("phi2", "phi1", "phi2star")
    if inputs.test is None:
        raise MissingInputError("no split val or test in the store")
    if not image_sources(train) or not image_sources(inputs.test):
        raise MissingInputError("the store's rows were imported, its images are not known")
    fit = _constant(trained, train)
    how = LABELS[trained.kind] + f", {CALIBRATED}" * (fit is not None)
    return draw_sheet(make_sheet(trained, train, inputs.test, fit), how, title_subject(train, trained.categories.novel))


def _constant(trained: TrainedPhi, train: Split) -> Calibration | None:
    """For one example, as a table has it; None where it failed or is of another method, or of other rows."""
    fits = [fit for fit in load_calibrations(trained.path.parent) if fit.shots == 1 and not fit.failed]
    return next((fit for fit in fits if fit.is_of(trained.as_method(), train, trained.categories)), None)


def title_subject(train: Split, novel: Sequence[str]) -> str:
    """What a title may call categories: novel only if the network is known never to have seen them."""
    seen = train.spec.provenance.get("trained_classes")
    if seen is None:
        return "Categories that the network may have seen,"
    shared = set(novel) & set(seen)
    if not shared:
        return "Novel categories"
    which = "that" if shared == set(novel) else "some of which"
    return f"Categories {which} the network was trained on too,"


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


# name -> title, and how it is drawn
CURVES = "curves"  # the picture that a report opens with
FIGURES: Mapping[str, tuple[str, Callable[[Inputs, Path], Figure]]] = {
    CURVES: ("Base against novel accuracy of each method, as the constant on its novel scores varies", _curves),
    "methods": ("Base against novel accuracy of all methods", _methods),
    "shots": ("Accuracy against the number of examples", _shots),
    "support": ("Examples, what their parameters resemble, and what test images are taken for", _sheet),
    "class-maps": ("Means and parameters of all categories (the paper's Figure 2)", _class_maps),
    "channels": ("What phi makes of the channels (the paper's Figure 5)", _channels),
    "training": ("Training of phi", _training),
    "inference": ("Inference", _inference),
}
FIGURE_FILES = (*(name + ending for name in FIGURES for ending in (".png", ".svg")), CLASS_MAP)

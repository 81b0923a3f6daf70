"""Sessions: the base categories first, then a few new ones at a time, learnt from a few examples with no training.

Tao, Hong, Chang, Dong, Wei and Gong, Few-Shot Class-Incremental Learning, CVPR 2020: of mini-ImageNet's 100 categories
in alphabetical order the first 60 are the base, and 8 sessions add 5 each, from 5 examples. After each session every
test image of a category that is known by then competes among all of them. They fix the examples; here
they are drawn, or read from a file that lists them, as published lists do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.split import Split
from predictor.protocol.base_categories import rows_of
from predictor.protocol.evaluation import AllWayTask
from predictor.protocol.method import JointMethod, Method, require_scores
from predictor.protocol.outcome import BaseSide, Outcome, Queries

ACCURACY, BASE, NOVEL, HARMONIC = "accuracy", "base", "novel", "harmonic_mean"
MEASURES = (ACCURACY, BASE, NOVEL, HARMONIC)
Progress = Callable[[int], object]  # draws done since the last call


@dataclass(frozen=True)
class SessionResult:
    """What a method reached. categories: (sessions + 1,) known after each, the base's first. figures: of every one of
    MEASURES (draws, sessions + 1) in percent; NaN where the base stands alone."""

    method: Method
    categories: tuple[int, ...]
    figures: dict[str, NDArray[np.float64]]

    def averages(self, measure: str) -> NDArray[np.float64]:
        """(draws,) over the sessions in which there is such a figure."""
        averaged: NDArray[np.float64] = np.nanmean(self.figures[measure], axis=1)
        return averaged

    def last(self, measure: str) -> NDArray[np.float64]:
        """(draws,) after the last session."""
        return self.figures[measure][:, -1]


def plan_sessions(base: int, novel: int, way: int) -> tuple[int, ...]:
    """How many categories are known after each session, from the base on; the last session may be smaller."""
    if way < 1 or novel < 1:
        raise InvalidInputError(f"sessions need new categories, got {novel} novel ones and {way} in a session")
    return (base, *(base + min(novel, first + way) for first in range(0, novel, way)))


def run_sessions(
    method: Method,
    task: AllWayTask,
    way: int = 5,
    shots: int = 5,
    draws: int = 10,
    seed: int = 0,
    progress: Progress | None = None,
) -> SessionResult:
    """Sessions in the order of the task's novel categories. Base scores are computed once for all of them."""
    if isinstance(method, JointMethod) or method.finetuned:
        raise InvalidInputError(f"{method.name} trains when it learns a category; a session has no training")
    known = plan_sessions(len(task.base), len(task.novel), way)
    method.prepare_for(task.base_categories)
    base_scores = method.table_base_scores(task.queries)  # (n, n_base)
    figures = {name: np.full((draws, len(known)), np.nan) for name in MEASURES}
    for draw in range(draws):
        support = task.support(shots, seed, draw).activations
        for session, count in enumerate(known):
            measured = _after(method, task.queries, base_scores, support, count - len(task.base))
            for name, value in measured.items():
                figures[name][draw, session] = value
        if progress is not None:
            progress(1)
    return SessionResult(method, known, figures)


def _after(method: Method, queries: Queries, base_scores: Tensor, support: Tensor, count: int) -> dict[str, float]:
    """With the first `count` novel categories known: their test images come after the base's, in their order."""
    asked = int((queries.novel_targets < count).sum())
    rows = len(queries.base_targets) + asked
    part = Queries(queries.activations[:rows], queries.base_targets, queries.novel_targets[:asked])
    side = BaseSide.of(base_scores[:rows], part)
    if not count:
        right = 100 * float((side.rank < 1).double().mean())
        return {ACCURACY: right, BASE: right}
    given = method.novel_scores(part.activations, support[:count])
    novel = require_scores(method, "novel_scores", given, (rows, count), "(n, ways)")
    metrics = Outcome.of(side, novel, part).metrics()
    return {
        ACCURACY: metrics["joint"],
        BASE: metrics["top1_large"],
        NOVEL: metrics["top1_few"],
        HARMONIC: metrics["harmonic_mean"],
    }


def mean_over_draws(values: NDArray[np.float64]) -> Sequence[float | None]:
    """(draws, n) -> n means; None where there is no figure."""
    return [None if np.isnan(column).any() else round(float(column.mean()), 2) for column in values.T]


def read_examples(path: Path, train: Split, novel: Sequence[str], shots: int) -> tuple[tuple[int, ...], ...]:
    """Of each novel category the rows of its first `shots` images in the file.

    path: of a text file with the path of an image in each line, whatever follows a comma left out. Images are known by
    their file names and the folders that hold them, or, if that finds none, by their file names alone, wherever they
    lay; lines of images that are of no novel category, such as those of the base, are passed over.
    """
    rows, places = rows_of(train, novel)
    known: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        for name in dict.fromkeys(last_parts(train.ids[row], parts) for parts in (1, 2)):
            known[name].append((row, place))
    shown: dict[int, list[int]] = defaultdict(list)
    names = read_names(path)
    parts = 2 if any("/" in (last := last_parts(name, 2)) and last in known for name in names) else 1
    for name in names:
        found = known.get(last_parts(name, parts), [])
        if len(found) > 1:
            raise InvalidInputError(
                f"{path} names {name}, and {train.path} has {len(found)} images of that name; give their folders too"
            )
        for row, place in found:
            if row not in shown[place]:
                shown[place].append(row)
    for place, category in enumerate(novel):
        if len(shown[place]) < shots:
            raise InvalidInputError(
                f"{path} must list {shots} images of {category!r} that are in {train.path}, it lists "
                f"{len(shown[place])}; add some, or ask for fewer shots (--shots)"
            )
    return tuple(tuple(shown[place][:shots]) for place in range(len(novel)))


def read_names(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path} must be a text file with a path in each line: {error}") from error
    return [line.partition(",")[0].strip() for line in lines if line.strip()]


def last_parts(path: str, count: int) -> str:
    return "/".join(path.replace("\\", "/").split("/")[-count:])

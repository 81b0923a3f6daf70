"""What the page shows of a session as a whole: how well it tells its own examples apart, and a map of them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.classifier.checking import check_support
from predictor.classifier.classifier import Classifier
from predictor.figures.tsne import tsne
from predictor.teach.state import State

ALIKE = 0.10  # the mean probability for the other category, from which on a pair is named without a mistake
PAIRS = 5
Way = Literal["axes", "neighbours"]
MOST_NEIGHBOURS = 3_000  # points beyond which t-SNE takes longer than anyone waits


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

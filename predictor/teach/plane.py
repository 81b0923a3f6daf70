"""Examples and base categories as points in a plane: by principal axes at once, by t-SNE where one can wait."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.classifier.classifier import Classifier
from predictor.figures.tsne import tsne
from predictor.teach.state import State

Way = Literal["axes", "neighbours"]
MOST_NEIGHBOURS = 3_000  # points beyond which t-SNE takes longer than anyone waits


def place_points(classifier: Classifier, state: State, way: Way) -> dict[str, Any]:
    """Directions, as the classifier compares them: what it makes of each example, and its rows of the base."""
    listed = [(category.name, one) for category in state for one in category.examples]
    rule, rows = classifier.fitted, torch.cat([*classifier.support.values(), torch.empty(0, classifier.dim)])
    taught = rule.directions(rule.parameters(rows))[0]
    points = torch.cat([taught, rule.base_directions(classifier.base_parameters)])  # (n, dim) of unit length
    way = "neighbours" if way == "neighbours" and 4 <= len(points) <= MOST_NEIGHBOURS else "axes"
    placed = tsne(points.numpy()) if way == "neighbours" else principal_axes(points)
    scaled = np.round(placed / max(1e-12, float(np.abs(placed).max(initial=0.0))), 4)
    n = len(listed)
    return {
        "way": way,
        "examples": [{"category": name, **one.to_json(), "x": x, "y": y}
                     for (name, one), (x, y) in zip(listed, scaled[:n].tolist(), strict=True)],
        "base": [{"category": name, "x": x, "y": y}
                 for name, (x, y) in zip(classifier.base, scaled[n:].tolist(), strict=True)],
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
    found: NDArray[np.float64] = (placed * placed.gather(0, largest[None]).sign()).numpy()
    return found

"""How well a few photos of each category teach the rest: draws of examples, accuracy, and known from unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.protocol.outcome import auroc

Rows = Mapping[str, Tensor]  # category -> its images' activations (n, dim)


@dataclass(frozen=True)
class Trial:
    """Means over draws, in shares of 1. accuracy: of the images that were not taught, among all categories. accepted:
    of them, those not called unknown. refused: images of categories that were not taught that are called unknown, and
    auroc of both by familiarity, where half of the categories are taught; None where there are fewer than four."""

    shots: int
    draws: int
    tested: int
    accuracy: float
    deviation: float
    accepted: float
    refused: float | None
    auroc: float | None


def draw_examples(rows: Rows, shots: int, seed: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    """Which images of each category are taught: so many, but one is always left where there are two."""
    random = np.random.default_rng(list(seed))
    return {
        name: np.sort(random.permutation(len(values))[: max(1, min(shots, len(values) - 1))])
        for name, values in rows.items()
    }


def rest_of(rows: Rows, taught: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    return {name: np.setdiff1d(np.arange(len(values)), taught[name]) for name, values in rows.items()}


def teach(make: Callable[[], Classifier], rows: Rows, taught: Mapping[str, NDArray[np.int64]]) -> Classifier:
    learner = make()
    learner.adapt_all({name: rows[name][torch.from_numpy(places)] for name, places in taught.items()})
    return learner


def run_trial(make: Callable[[], Classifier], rows: Rows, shots: int, draws: int = 5) -> Trial:
    """make: a classifier that knows nothing yet."""
    if len(rows) < 2 or not any(len(values) > 1 for values in rows.values()):
        raise InvalidInputError("a trial needs two categories, and one with two images, so that one can be tested")
    right, accepted, refused, separated = [], [], [], []
    tested = 0
    for draw in range(draws):
        taught = draw_examples(rows, shots, (0, shots, draw))
        rest = rest_of(rows, taught)
        learner = teach(make, rows, taught)
        queries = torch.cat([rows[name][torch.from_numpy(places)] for name, places in rest.items()])
        names = [name for name, places in rest.items() for _ in places]
        answers = [line[0][0] for line in learner.predict(queries, top=1)]
        right.append(float(np.mean([a == b for a, b in zip(answers, names, strict=True)])))
        accepted.append(float(learner.is_known(queries).float().mean()))
        tested += len(names)
        if len(rows) >= 4:
            share, area = _unknown(make, rows, taught, rest, np.random.default_rng([0, shots, draw, 1]))
            refused.append(share)
            separated += [] if math.isnan(area) else [area]  # none where no image of a known category is left
    return Trial(
        shots, draws, tested, float(np.mean(right)), float(np.std(right)), float(np.mean(accepted)),
        float(np.mean(refused)) if refused else None, float(np.mean(separated)) if separated else None,
    )  # fmt: skip


def _unknown(
    make: Callable[[], Classifier], rows: Rows, taught: Mapping[str, NDArray[np.int64]],
    rest: Mapping[str, NDArray[np.int64]], random: np.random.Generator,
) -> tuple[float, float]:  # fmt: skip
    """Half of the categories are taught: the share of the others' images called unknown, and the AUROC."""
    order = random.permutation(sorted(rows))
    known, strange = order[: len(order) // 2].tolist(), order[len(order) // 2 :].tolist()
    learner = teach(make, rows, {name: taught[name] for name in known})
    inside = torch.cat([rows[name][torch.from_numpy(rest[name])] for name in known])
    outside = torch.cat([rows[name] for name in strange])
    scores = (learner.familiarity(rows).numpy() if len(rows) else np.empty(0) for rows in (inside, outside))
    return float((~learner.is_known(outside)).float().mean()), auroc(*scores)

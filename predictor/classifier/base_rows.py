"""What rows of the base categories tell about a classifier: how familiar known images are, and what the base loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.streams.sampling import draw_support
from predictor.classifier.classifier import Classifier
from predictor.classifier.unknown import LOWEST, SHARE, Unknown
from predictor.protocol.rows import rows_of, take_float

MOST_ROWS = 4000
SHOTS = (1, 2, 3, 5, 10)
WAY, DRAWS, QUERIES = 10, 5, 20  # categories of a draw that stand in for taught ones, draws, held-out rows of each


@dataclass(frozen=True)
class BaseRows:
    """Held-out activations (n, dim) of the base categories where there are any, and their places among them (n,)."""

    activations: Tensor
    targets: Tensor

    @classmethod
    def of(cls, split: Split, base: Sequence[str]) -> BaseRows:
        known = [name for name in base if name in set(split.classes)]
        rows, targets = rows_of(split, known, MOST_ROWS)
        if not len(rows):
            raise InvalidInputError(f"{split.path} holds no row of a base category; name another split")
        places = np.array([base.index(name) for name in known])
        return cls(take_float(split, rows), torch.from_numpy(places[targets]))


def fit_unknown(classifier: Classifier, train: Split, held_out: Split) -> Unknown:
    """How familiar images of base categories are: with the base's own rows, and where they are learnt from a few
    examples of `train` as if they were new."""
    rows = BaseRows.of(held_out, classifier.base)
    cosines = classifier.cosines(rows.activations)[:, : len(classifier.base)].amax(1)
    lowest = float(torch.quantile(cosines, 1 - SHARE))
    index = train.class_index
    labels = np.array([index.position(name) for name in classifier.base])
    prior = {}
    for shots in SHOTS:
        enough = labels[index.counts[labels] > shots + 1]
        if len(enough):
            familiarity = torch.cat([_stand_in(classifier, train, enough, shots, draw) for draw in range(DRAWS)])
            mean, low = float(familiarity.mean()), float(torch.quantile(familiarity, 1 - SHARE))
            prior[shots] = (mean, max((mean - low) / LOWEST, 1e-3))
    return Unknown(prior or {1: (lowest, 0.0)}, lowest)


def _stand_in(classifier: Classifier, train: Split, labels: NDArray[np.int64], shots: int, draw: int) -> Tensor:
    """(n,) familiarity of rows of base categories that another classifier learns from others of their rows."""
    random = np.random.default_rng([0, shots, draw])
    taught = np.sort(random.choice(labels, min(WAY, len(labels)), replace=False))
    rows = draw_support(train.class_index, taught, shots, 0, draw)
    learner = Classifier(classifier.rule, aggregate=classifier.aggregate)
    examples = take_float(train, rows.ravel()).reshape(*rows.shape, train.dim)
    learner.adapt_all({str(place): part for place, part in enumerate(examples)})
    fresh = []
    for place, label in enumerate(taught):
        rest = np.setdiff1d(train.class_index.rows(int(label)), rows[place])
        fresh.append(random.choice(rest, min(QUERIES, len(rest)), replace=False))
    return learner.familiarity(take_float(train, np.sort(np.concatenate(fresh))))


@dataclass(frozen=True)
class Budget:
    """Top-1 of the base in percent: alone, and beside the taught categories with this constant on their scores."""

    novel_bias: float
    alone: float
    beside: float

    @property
    def loss(self) -> float:
        return self.alone - self.beside


def measure_base(classifier: Classifier, rows: BaseRows) -> Budget:
    """As the classifier is."""
    return _budget(_limits(classifier, rows), classifier.novel_bias)


def fit_budget(classifier: Classifier, rows: BaseRows, loss: float) -> Budget:
    """The highest constant with which the base loses at most so many percent points of its top-1."""
    if not 0 <= loss <= 100:
        raise InvalidInputError(f"the loss of the base must be from 0% to 100%, got {loss:g}%")
    if not classifier.support:
        raise InvalidInputError("no category was taught yet, so the base loses nothing; teach one first")
    limits = _limits(classifier, rows)
    right = np.sort(limits[limits > -np.inf])
    if not len(right):
        raise InvalidInputError("the base recognises none of its own rows, so there is nothing to lose")
    may_go = int(loss / 100 * len(limits) + 1e-9)
    return _budget(limits, float(right[min(may_go, len(right) - 1)]))


def _limits(classifier: Classifier, rows: BaseRows) -> NDArray[np.float64]:
    """(n,): the constant up to which a row is recognised, -inf where it is not among the base alone."""
    first = len(classifier.base)
    scores = classifier.scores(rows.activations).double()
    true = scores.gather(1, rows.targets[:, None])[:, 0]
    is_right = scores[:, :first].argmax(1) == rows.targets
    novel = scores[:, first:].amax(1) - classifier.novel_bias if scores.shape[1] > first else true - torch.inf
    return torch.where(is_right, true - novel, -torch.inf).numpy()


def _budget(limits: NDArray[np.float64], bias: float) -> Budget:
    count = max(1, len(limits))
    return Budget(bias, 100 * float((limits > -np.inf).sum()) / count, 100 * float((limits >= bias).sum()) / count)

"""What rows of the base categories tell about a classifier: how familiar known images are, and what the base loses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import actstore
from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.storage.place import parse_place
from actstore.streams.sampling import draw_support
from predictor.classifier.classifier import Classifier
from predictor.classifier.unknown import LOWEST, SHARE, Unknown
from predictor.protocol.base_categories import rows_of, take_float

if TYPE_CHECKING:
    from predictor.classifier.classifier import Store

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
class BaseLoss:
    """Top-1 of the base in percent on so many of its rows: alone, and beside the taught categories with this constant
    on their scores. before: the same with the constant that was there."""

    novel_bias: float
    alone: float
    beside: float
    rows: int
    before: BaseLoss | None = None

    @property
    def loss(self) -> float:
        return self.alone - self.beside

    @property
    def summary(self) -> str:
        text = f"the base has {self.beside:.2f}% top-1 beside them, {self.alone:.2f}% alone ({self.rows:,} rows)"
        if self.before is None:
            return text
        constant = f"the constant for the best harmonic mean, {self.before.novel_bias:g}"
        return f"{text}; {constant}, would leave it {self.before.beside:.2f}%"

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"base_top1_alone": self.alone, "base_top1": self.beside, "base_rows": self.rows}
        if self.before is not None:
            data["without_budget"] = {"novel_bias": self.before.novel_bias, "base_top1": self.before.beside}
        return data


def held_out_rows(train: Split, names: Sequence[str] | None = None) -> Split | None:
    """Rows that were not trained on: val or test of the same store, where it holds any of these categories."""
    store = actstore.open(train.store_path)
    found = next((store[name] for name in ("val", "test") if name in store.splits and name != train.name), None)
    if found is None or names is None:
        return found
    known = set(found.classes)
    return found if any(name in known and len(found.of_class(name)) for name in names) else None


def limit_base_loss(classifier: Classifier, percent: float, store: Store | None, split: str) -> BaseLoss:
    """Choose the constant by its cost, measured on the base's own rows."""
    train = find_base_split(classifier, store, split)
    if train is None:
        raise InvalidInputError("the loss of the base is measured on its rows: name the store that has them")
    rows = BaseRows.of(held_out_rows(train, classifier.base) or train, classifier.base)
    before, chosen = measure_base(classifier, rows), fit_base_loss(classifier, rows, percent)
    classifier.calibrate(chosen.novel_bias)
    return replace(chosen, before=before)


def find_base_split(classifier: Classifier, store: Store | None = None, split: str = "train") -> Split | None:
    """In the store that is named, else in the one that the classifier was made with; None where there is none."""
    if store is None and classifier.base_split is not None:
        return classifier.base_split
    named = store if store is not None else classifier.about.get("store")
    if not classifier.base or named is None:
        return None
    if not isinstance(named, actstore.ActivationStore):
        if not parse_place(named).exists():
            return None
        named = actstore.open(named)
    require_network(classifier, named[split])  # another store may lie there by now
    return named[split]


def require_network(classifier: Classifier, split: Split) -> None:
    """Rows must be of the network that the classifier names."""
    record, theirs = classifier.about.get("network", {}), split.spec.provenance
    ours, other = record.get("weights_sha256"), theirs.get("weights_sha256")
    if ours and other and ours != other:
        raise InvalidInputError(
            f"{split.store_path} holds activations of another network ({theirs.get('backbone')}) than the "
            f"classifier's ({record.get('backbone')}); give rows of that one"
        )


def measure_base(classifier: Classifier, rows: BaseRows) -> BaseLoss:
    """As the classifier is."""
    return _base_loss(_limits(classifier, rows), classifier.novel_bias)


def fit_base_loss(classifier: Classifier, rows: BaseRows, percent: float) -> BaseLoss:
    """The highest constant with which the base loses at most so many percent points of its top-1."""
    if not 0 <= percent <= 100:
        raise InvalidInputError(f"the loss of the base must be from 0% to 100%, got {percent:g}%")
    if not classifier.support:
        raise InvalidInputError("no category was taught yet, so the base loses nothing; teach one first")
    limits = _limits(classifier, rows)
    right = np.sort(limits[limits > -np.inf])
    if not len(right):
        raise InvalidInputError("the base recognises none of its own rows, so there is nothing to lose")
    may_go = int(percent / 100 * len(limits) + 1e-9)
    return _base_loss(limits, float(right[min(may_go, len(right) - 1)]))


def _limits(classifier: Classifier, rows: BaseRows) -> NDArray[np.float64]:
    """(n,): the constant up to which a row is recognised, -inf where it is not among the base alone."""
    first = len(classifier.base)
    scores = classifier.scores(rows.activations).double()
    true = scores.gather(1, rows.targets[:, None])[:, 0]
    is_right = scores[:, :first].argmax(1) == rows.targets
    novel = scores[:, first:].amax(1) - classifier.novel_bias if scores.shape[1] > first else true - torch.inf
    return torch.where(is_right, true - novel, -torch.inf).numpy()


def _base_loss(limits: NDArray[np.float64], bias: float) -> BaseLoss:
    count = max(1, len(limits))
    alone, beside = (limits > -np.inf).sum(), (limits >= bias).sum()
    return BaseLoss(bias, 100 * float(alone) / count, 100 * float(beside) / count, len(limits))

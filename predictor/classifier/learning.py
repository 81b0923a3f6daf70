"""A classifier learns from images or rows of a store, and keeps the balance between known and taught categories."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.classifier.classifier import KEEPS_KNOWN, Classifier
from predictor.classifier.photos import Photos, read_photos, read_rows
from predictor.classifier.presentation import html_result
from predictor.classifier.scoring import leave_one_out
from predictor.protocol.calibration import nearest_shots
from predictor.protocol.method import Aggregate
from predictor.protocol.results import Table

if TYPE_CHECKING:
    import pandas

    from predictor.classifier.classifier import FilePath, Store

LOOK_ALIKES = (
    "`unknown` is for photos of something else; what looks like a category, such as another bird among birds, is "
    "mostly taken for it: teach such look-alikes as categories of their own"
)
# Of the taught categories' own images, so many are to win against what the network knows. On mini-ImageNet's photos
# through efficientnet-lite0 the constant with the best harmonic mean let 84 to 97% win (2, 5 and 16 categories of 1 and
# 5 examples beside 984 known ones).
WINNING = 0.9


@dataclass(frozen=True)
class Adaptation:
    """What a classifier has learnt, and what was left out; it prints as a table.

    Attributes:
        learnt: for each category how many examples it was given.
        unreadable: for each image that was left out, the reason.
        warnings: what a reader must know, in sentences.
        read_seconds: how long reading the examples took.
        milliseconds: how long learning them took.
    """

    learnt: dict[str, int]
    unreadable: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    read_seconds: float = 0.0
    milliseconds: float = 0.0

    @property
    def examples(self) -> int:
        """The number of examples of all categories."""
        return sum(self.learnt.values())

    @property
    def summary(self) -> str:
        """What was learnt and how long it took, in a sentence."""
        return (
            f"learnt {len(self.learnt):,} categories from {self.examples:,} examples in {self.milliseconds:.1f} ms "
            f"(reading them took {self.read_seconds:.2f} s)"
        )

    def to_pandas(self) -> pandas.DataFrame:
        """Make a data frame with a row for each category."""
        import pandas

        return pandas.DataFrame(list(self.learnt.items()), columns=["category", "examples"])

    def __repr__(self) -> str:
        return "\n".join([self.summary, self._table().to_text(), *self.warnings])

    def _repr_html_(self) -> str:
        return html_result(self._table(), [self.summary], self.warnings)

    def _table(self) -> Table:
        return Table(["category", "examples"], [[name, f"{count:,}"] for name, count in self.learnt.items()])


def adapt_photos(
    classifier: Classifier, photos: Photos, extend: bool, aggregate: Aggregate | None, on_error: str,
    weights: FilePath | None, device: str, progress: bool | None,
) -> Adaptation:  # fmt: skip
    began = time.perf_counter()
    read = read_photos(classifier, photos, on_error, weights, device, progress)
    support = {name: rows for name, (rows, _) in read.by_label().items()}
    if lost := [item.label for item in photos.items if item.label not in support]:
        raise InvalidInputError(f"category {lost[0]!r} has no support left: none of its images could be read")
    return _learn(classifier, support, extend, aggregate, began, read.unreadable, read.warnings)


def adapt_store(
    classifier: Classifier, store: Store, split: str | None, classes: Sequence[str] | None, path_glob: str | None,
    rows: Any, extend: bool, aggregate: Aggregate | None,
) -> Adaptation:  # fmt: skip
    began = time.perf_counter()
    opened, numbers, values = read_rows(classifier, store, split, classes, path_glob, rows)
    labels = opened.labels[numbers]
    if not len(numbers) or (labels < 0).any():
        what = "no row" if not len(numbers) else "a row without a label"
        raise InvalidInputError(f"the support chosen from {opened.path} holds {what}; choose labelled rows")
    examples = {opened.classes[label]: values[labels == label] for label in sorted(set(labels.tolist()))}
    return _learn(classifier, examples, extend, aggregate, began)


def _learn(
    classifier: Classifier, examples: Mapping[str, Tensor], extend: bool, aggregate: Aggregate | None, began: float,
    unreadable: Mapping[str, str] | None = None, warnings: Sequence[str] = (),
) -> Adaptation:  # fmt: skip
    read = time.perf_counter()
    classifier.adapt_all(examples, extend, aggregate)
    _ = classifier.rows  # predicted here, so that the time says what learning costs
    took, said, names = 1e3 * (time.perf_counter() - read), list(warnings), classifier.categories
    if len(names) == 1:
        said.append(f"{names[0]!r} is the only category: an image is that or unknown; teach others to tell it from")
    if classifier.threshold is not None:
        said.append(LOOK_ALIKES)
    learnt = {name: len(rows) for name, rows in examples.items()}
    return Adaptation(learnt, dict(unreadable or {}), said, read - began, took)


def balance(classifier: Classifier, aggregate: Aggregate | None = None) -> None:
    """The constant and the aggregate as they were calibrated, or beside what the network knows; else as they are."""
    shots = classifier.typical_shots()
    fits = {} if classifier.calibrations is None else classifier.calibrations(shots)
    if fits:
        found, bias = fits[nearest_shots(fits, shots)]
        classifier.set_constant(bias, aggregate or found)
    elif aggregate is not None:
        classifier.set_constant(classifier.novel_bias, aggregate)
    if classifier.about.get(KEEPS_KNOWN) and classifier.support:
        classifier.set_constant(bias_beside_known(classifier))


@torch.no_grad()
def bias_beside_known(classifier: Classifier) -> float:
    """The constant on the taught categories' scores, where no rows of the known ones are at hand to balance it with.

    Each example is scored without itself; where it is its category's only one, with the familiarity that is usual.
    """
    first, limits = len(classifier.base), []
    left_out = leave_one_out(classifier)
    if len(left_out.category):
        own = left_out.scores[:, first:] - classifier.novel_bias
        is_right = own.argmax(1) == left_out.category - first
        limits.append((left_out.scores[:, :first].amax(1) - own.amax(1))[is_right])
    single = [rows for rows in classifier.support.values() if len(rows) == 1]
    if single and classifier.unknown is not None:
        rows = torch.cat(single)
        weight = classifier.rows.weight[first:].norm(dim=1).mean()  # the scale of a score
        point = classifier.fitted.directions(classifier.rows.weight[:0])[1]
        expected = classifier.unknown.expected(1)[0] * weight * (classifier.fitted.read(rows) - point).norm(dim=1)
        limits.append(classifier.scores(rows)[:, :first].amax(1) - expected)
    pooled = torch.cat(limits) if limits else torch.empty(0)
    return float(np.quantile(pooled.double().numpy(), WINNING)) if len(pooled) else classifier.novel_bias

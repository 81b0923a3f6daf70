"""Each example of a taught category, scored by the classifier that never saw it: leave-one-out, without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from predictor.classifier.linear_rows import Rows

if TYPE_CHECKING:
    from predictor.classifier.classifier import Classifier


@dataclass(frozen=True)
class HeldOut:
    """Examples of the taught categories that have others beside them.

    category: (n,) positions among the classifier's categories. example: (n,) positions among the category's examples.
    scores, cosines: (n, n_categories) with the row of the own category made without the example.
    """

    category: Tensor
    example: Tensor
    scores: Tensor
    cosines: Tensor


@torch.no_grad()
def leave_one_out(classifier: Classifier, most: int | None = None) -> HeldOut:
    """The centre, where the rule takes it from the examples, stays that of all. most: of the examples of a category,
    the first so many; all by default."""
    first = len(classifier.base)
    several = [(first + place, rows) for place, rows in enumerate(classifier.support.values()) if len(rows) > 1]
    if not several:
        none = torch.empty(0, len(classifier.categories))
        return HeldOut(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), none, none)
    asked = [(column, len(rows) if most is None else min(most, len(rows))) for column, rows in several]
    examples = torch.cat([rows[:most] for _, rows in several])
    category = torch.cat([torch.full((count,), column) for column, count in asked])
    example = torch.cat([torch.arange(count) for _, count in asked])
    own = _by_means if classifier.aggregate == "mean" else _by_rows
    own_scores, own_cosines = own(classifier, [rows for _, rows in several], [count for _, count in asked], examples)
    scores = classifier.scores(examples).scatter(1, category[:, None], own_scores[:, None])
    cosines = classifier.cosines(examples).scatter(1, category[:, None], own_cosines[:, None])
    return HeldOut(category, example, scores, cosines)


def _by_means(
    classifier: Classifier, support: Sequence[Tensor], counts: Sequence[int], examples: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores and cosines (n,) of examples (n, dim) with the mean of the others of their category, in one pass."""
    means = torch.cat([
        (rows.double().sum(0) - rows[:count].double()) / (len(rows) - 1)
        for rows, count in zip(support, counts, strict=True)
    ])  # fmt: skip
    own = classifier.rows_of(list(means.float()[:, None].unbind(0)))
    scores = (classifier.fitted.read(examples) * own.weight).sum(1) + own.bias
    return scores, (classifier.seen(examples) * _directions(classifier, own)).sum(1)


def _by_rows(
    classifier: Classifier, support: Sequence[Tensor], counts: Sequence[int], examples: Tensor
) -> tuple[Tensor, Tensor]:
    """The same with the best of the others, each of which has a row of its own."""
    read, seen = (
        torch.split(rows, list(counts)) for rows in (classifier.fitted.read(examples), classifier.seen(examples))
    )
    scores: list[Tensor] = []
    cosines: list[Tensor] = []
    for rows, reads, sees in zip(support, read, seen, strict=True):
        own, places = classifier.rows_of([rows]), torch.arange(len(reads))
        for values, kept in ((own.scores(reads), scores), (sees @ _directions(classifier, own).T, cosines)):
            values[places, places] = -torch.inf
            kept.append(values.amax(1))
    return torch.cat(scores), torch.cat(cosines)


def _directions(classifier: Classifier, rows: Rows) -> Tensor:
    return classifier.fitted.directions(rows.weight)[0]

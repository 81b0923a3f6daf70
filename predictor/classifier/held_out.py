"""Each example of a taught category, scored by the classifier that never saw it: leave-one-out, without training."""

from __future__ import annotations

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
    scores, cosines = classifier.scores(examples).clone(), classifier.cosines(examples).clone()
    start = 0
    for (column, count), (_, rows) in zip(asked, several, strict=True):
        for one in range(count):
            kept = torch.cat([rows[:one], rows[one + 1 :]])
            own = classifier.rows_of([kept])
            scores[start, column] = own.scores(classifier.fitted.read(rows[one : one + 1])).amax()
            cosines[start, column] = (classifier.seen(rows[one : one + 1]) @ _directions(classifier, own).T).amax()
            start += 1
    category = torch.cat([torch.full((count,), column) for column, count in asked])
    example = torch.cat([torch.arange(count) for _, count in asked])
    return HeldOut(category, example, scores, cosines)


def _directions(classifier: Classifier, rows: Rows) -> Tensor:
    return classifier.fitted.directions(rows.weight)[0]

"""A classifier as one linear layer: activations that are checked, rows of parameters, leave-one-out scores, and the
constant that they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.spec import is_unicode
from predictor.phi.rule import LinearRows

if TYPE_CHECKING:
    from predictor.classifier.activation_classifier import ActivationClassifier

# Of the taught categories' own images, so many are to win against what the network knows. On mini-ImageNet's photos
# through efficientnet-lite0 the constant with the best harmonic mean let 84 to 97% win (2, 5 and 16 categories of 1 and
# 5 examples beside 984 known ones).
WINNING = 0.9


def parse_examples(name: str, values: ArrayLike | Tensor, dim: int) -> Tensor:
    """(n, dim) float32 in memory of its own: the caller may go on with theirs."""
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"a category needs a name, got {name!r}")
    if not is_unicode(name):
        raise InvalidInputError(f"the name of category {name!r} is not valid Unicode text; give it another")
    examples = parse_activations(f"category {name!r}", values, dim)
    if not len(examples):
        raise InvalidInputError(f"category {name!r} has no example; give at least one")
    return examples.clone()


def parse_activations(what: str, values: ArrayLike | Tensor, dim: int) -> Tensor:
    """(n, dim) float32 of (n, dim) or (dim,); what: their name in a message."""
    try:
        with np.errstate(over="ignore"):  # an infinity is refused below
            tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, np.float32))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{what}: expected activations (n, {dim}), got no array: {error}") from None
    tensor = tensor.detach().float()
    tensor = tensor[None] if tensor.ndim == 1 else tensor
    if tensor.ndim != 2 or tensor.shape[1] != dim:
        raise InvalidInputError(f"{what}: expected activations (n, {dim}), got {tuple(tensor.shape)}")
    if not torch.isfinite(tensor).all():
        raise InvalidInputError(f"{what}: activations must be finite, got a NaN or an infinity")
    return tensor


def ranked(scores: Tensor, top: int) -> list[list[tuple[int, float]]]:
    """(n, n_categories) -> per row the first `top` categories with their probabilities, best first; of equal scores the
    lower category comes first."""
    places = scores.argsort(dim=1, descending=True, stable=True)[:, :top]
    shares = scores.softmax(1).gather(1, places)
    return [list(zip(*row, strict=True)) for row in zip(places.tolist(), shares.tolist(), strict=True)]


@dataclass(frozen=True)
class LeftOut:
    """Examples of the taught categories that have others beside them.

    category: (n,) positions among the classifier's categories. example: (n,) positions among the category's examples.
    scores, cosines: (n, n_categories) with the row of the own category made without the example.
    """

    category: Tensor
    example: Tensor
    scores: Tensor
    cosines: Tensor


@torch.no_grad()
def leave_one_out(classifier: ActivationClassifier, most: int | None = None) -> LeftOut:
    """The centre, where the rule takes it from the examples, stays that of all. most: of the examples of a category,
    the first so many; all by default."""
    first = len(classifier.base)
    several = [(first + place, rows) for place, rows in enumerate(classifier.support.values()) if len(rows) > 1]
    if not several:
        none = torch.empty(0, len(classifier.categories))
        return LeftOut(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), none, none)
    asked = [(column, len(rows) if most is None else min(most, len(rows))) for column, rows in several]
    examples = torch.cat([rows[:most] for _, rows in several])
    category = torch.cat([torch.full((count,), column) for column, count in asked])
    example = torch.cat([torch.arange(count) for _, count in asked])
    own = _by_means if classifier.aggregate == "mean" else _by_rows
    own_scores, own_cosines = own(classifier, [rows for _, rows in several], [count for _, count in asked], examples)
    scores = classifier.scores(examples).scatter(1, category[:, None], own_scores[:, None])
    cosines = classifier.cosines(examples).scatter(1, category[:, None], own_cosines[:, None])
    return LeftOut(category, example, scores, cosines)


def _by_means(
    classifier: ActivationClassifier, support: Sequence[Tensor], counts: Sequence[int], examples: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores and cosines (n,) of examples (n, dim) with the mean of the others of their category, in one pass."""
    means = torch.cat([
        (rows.double().sum(0) - rows[:count].double()) / (len(rows) - 1)
        for rows, count in zip(support, counts, strict=True)
    ])  # fmt: skip
    own = classifier.rows_of(list(means.float()[:, None].unbind(0)))
    scores = (classifier.fitted.read(examples) * own.weight).sum(1) + own.bias
    return scores, (classifier.centred_unit_vectors(examples) * _directions(classifier, own)).sum(1)


def _by_rows(
    classifier: ActivationClassifier, support: Sequence[Tensor], counts: Sequence[int], examples: Tensor
) -> tuple[Tensor, Tensor]:
    """The same with the best of the others, each of which has a row of its own."""
    read = torch.split(classifier.fitted.read(examples), list(counts))
    seen = torch.split(classifier.centred_unit_vectors(examples), list(counts))
    scores: list[Tensor] = []
    cosines: list[Tensor] = []
    for rows, reads, sees in zip(support, read, seen, strict=True):
        own, places = classifier.rows_of([rows]), torch.arange(len(reads))
        for values, kept in ((own.scores(reads), scores), (sees @ _directions(classifier, own).T, cosines)):
            values[places, places] = -torch.inf
            kept.append(values.amax(1))
    return torch.cat(scores), torch.cat(cosines)


def _directions(classifier: ActivationClassifier, rows: LinearRows) -> Tensor:
    return classifier.fitted.directions(rows.weight)[0]


@torch.no_grad()
def bias_beside_known(classifier: ActivationClassifier) -> float:
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

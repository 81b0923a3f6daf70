"""Is a set of examples good? Each one classified by the others: what goes wrong, and which categories look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from predictor.classifier.classifier import Classifier
from predictor.classifier.display_names import display
from predictor.classifier.held_out import leave_one_out
from predictor.classifier.linear_rows import ranked
from predictor.classifier.predictions import Guess


@dataclass(frozen=True)
class Checked:
    """One example: category is what it is, guesses what the others take it for; example: its place in the category."""

    category: str
    example: int
    guesses: tuple[Guess, ...]

    @property
    def is_right(self) -> bool:
        return self.guesses[0].category == self.category


@dataclass(frozen=True)
class Alike:
    """share: the probability that images of either have for the other one, on average. mistaken: images of one that
    were taken for the other."""

    one: str
    other: str
    share: float
    mistaken: int


@dataclass(frozen=True)
class Check:
    """names: the taught categories that could be checked. confusion: (names, names + 1) images by what they are and
    what they were taken for; the last column is every category that is not among the names. single: those with one
    example, which nothing can be said of. alike: all pairs, the most alike first."""

    names: tuple[str, ...]
    examples: tuple[Checked, ...]
    confusion: NDArray[np.int64]
    alike: tuple[Alike, ...]
    single: tuple[str, ...]

    @property
    def accuracy(self) -> float:
        return sum(example.is_right for example in self.examples) / len(self.examples)

    @property
    def wrong(self) -> list[Checked]:
        """The surest mistakes first."""
        mistakes = [example for example in self.examples if not example.is_right]
        return sorted(mistakes, key=lambda example: -example.guesses[0].probability)


def check_support(classifier: Classifier, top: int = 5) -> Check:
    """Leave-one-out over what the classifier was taught, among all that it knows."""
    if len(classifier.categories) < 2:
        raise InvalidInputError(
            f"a check compares categories, but there is only {', '.join(classifier.categories) or 'none'}; "
            "give at least two"
        )
    held = leave_one_out(classifier)
    if not len(held.category):
        raise InvalidInputError("every category has one image, so none can be left out; give at least two of one")
    categories = classifier.categories
    shown = [display(classifier, name) for name in categories]
    examples = tuple(
        Checked(categories[own], example, tuple(Guess(categories[place], shown[place], share) for place, share in row))
        for own, example, row in zip(
            held.category.tolist(), held.example.tolist(), ranked(held.scores, top), strict=True
        )
    )
    names = tuple(name for name, rows in classifier.support.items() if len(rows) > 1)
    single = tuple(name for name in classifier.support if name not in names)
    confusion = _confusion(names, examples)
    shares = held.scores.softmax(1).numpy()[:, [categories.index(name) for name in names]]  # (examples, names)
    return Check(names, examples, confusion, _pairs(names, examples, confusion, shares), single)


def _confusion(names: Sequence[str], examples: Sequence[Checked]) -> NDArray[np.int64]:
    place = {name: number for number, name in enumerate(names)}
    counts = np.zeros((len(names), len(names) + 1), np.int64)
    for example in examples:
        counts[place[example.category], place.get(example.guesses[0].category, len(names))] += 1
    return counts


def _pairs(
    names: Sequence[str], examples: Sequence[Checked], counts: NDArray[np.int64], shares: NDArray[np.float32]
) -> tuple[Alike, ...]:
    own = np.array([example.category for example in examples])
    mean = np.stack([shares[own == name].mean(0) for name in names])  # (names, names)
    pairs = [
        Alike(names[a], names[b], float((mean[a, b] + mean[b, a]) / 2), int(counts[a, b] + counts[b, a]))
        for a in range(len(names))
        for b in range(a + 1, len(names))
    ]
    return tuple(sorted(pairs, key=lambda pair: (-pair.mistaken, -pair.share)))

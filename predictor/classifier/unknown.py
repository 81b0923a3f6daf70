"""When nothing known fits: how close an image must be to a known category, so that most of that category's own are.

How close is the highest cosine with a category's row, about the centre (`Classifier.familiarity`). On mini-ImageNet
through efficientnet-lite0 (16 + 64 validation and training categories, 20 known and 20 unknown, 5 shots) that tells
known from unknown with an AUROC of 0.844; the softmax of the scores with 0.81, the distance of the best two with 0.77.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError

UNKNOWN = "unknown"  # what is said of an image that no category fits; no category may be called so
SHARE = 0.95  # of held-out images of known categories that are to be accepted
LOWEST = 1.645  # deviations below the mean that leave out 5% of a normal distribution
MEAN_WEIGHT, SPREAD_WEIGHT = 2.0, 5.0  # the prior counts as so many held-out examples
MANY = 60  # of which it is not asked: three of them are below the threshold
# Shots -> mean and spread below it of a held-out image's familiarity, of 10 categories of mini-ImageNet's photos
# through efficientnet-lite0
PHOTOS = {1: (0.25, 0.10), 2: (0.29, 0.11), 3: (0.33, 0.12), 5: (0.36, 0.125), 10: (0.41, 0.135)}
# the same before a background, of mini-ImageNet's photos and of birds: `python -m tests.bench.photos_unknown --prior`
PHOTOS_BEFORE_BACKGROUND = {
    1: (0.494, 0.161), 2: (0.539, 0.153), 3: (0.565, 0.152), 5: (0.589, 0.149), 10: (0.614, 0.147),
}  # fmt: skip
PHOTOS_KNOWN = 0.165  # of images of the network's own categories, the familiarity that 95% have


@dataclass(frozen=True)
class Unknown:
    """What a classifier knows of familiarity before it is taught.

    prior: shots -> (mean, spread below it) of held-out images of categories with so many examples. base_threshold: what
    SHARE of the base's held-out images reach, None without a base. at: a threshold set by hand.
    """

    prior: Mapping[int, tuple[float, float]]
    base_threshold: float | None = None
    at: float | None = None

    def __post_init__(self) -> None:
        numbers = [*(part for both in self.prior.values() for part in both), self.base_threshold or 0, self.at or 0]
        if not self.prior or not all(math.isfinite(number) for number in numbers):
            raise InvalidInputError("familiarity must be finite numbers, with at least one number of shots")

    def set_at(self, threshold: float | None) -> Unknown:
        if threshold is not None and not -1 <= threshold <= 1:
            raise InvalidInputError(f"the threshold of unknown is a cosine from -1 to 1, got {threshold}")
        return replace(self, at=threshold)

    def expected(self, shots: int) -> tuple[float, float]:
        """Of so many examples, or the nearest number below that the prior has."""
        known = [count for count in self.prior if count <= max(1, shots)] or [min(self.prior)]
        return self.prior[max(known)]

    def threshold(self, held_out: Sequence[tuple[int, NDArray[Any]]]) -> float:
        """held_out: per taught category its number of examples, and the familiarity of each without itself (none where
        there is a single one: the prior stands for it then).

        The user's images may be closer to each other than the prior's, or farther, and so of every number of examples:
        what is fitted is the difference, and the spread about it.
        """
        if not held_out and self.base_threshold is not None:
            return self.base_threshold
        differences = np.concatenate([np.empty(0), *(
            np.asarray(familiarity, np.float64) - self.expected(shots - 1)[0] for shots, familiarity in held_out
        )])  # fmt: skip
        count = len(differences)
        difference = float(differences.sum()) / (count + MEAN_WEIGHT)
        usual = [self.expected(shots) for shots, _ in held_out] or [self.expected(1)]
        mean, spread = (float(np.mean(part)) for part in zip(*usual, strict=True))
        if count >= MANY:
            return mean + float(np.quantile(differences, 1 - SHARE))
        below = differences[differences < difference] - difference
        # of a normal distribution half of the values are below; each counts for its mirror image too
        squares = 2 * float(np.square(below).sum()) + SPREAD_WEIGHT * spread**2
        return mean + difference - LOWEST * math.sqrt(squares / (2 * len(below) + SPREAD_WEIGHT))

    def to_json(self) -> dict[str, Any]:
        prior = [[shots, *both] for shots, both in self.prior.items()]
        return {"prior": prior, "base_threshold": self.base_threshold, "at": self.at}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Unknown:
        prior = {int(shots): (float(mean), float(spread)) for shots, mean, spread in data["prior"]}
        return cls(prior, data["base_threshold"], data["at"])


def is_reserved(name: str) -> bool:
    return name.strip().casefold() == UNKNOWN


def refuse_reserved(name: str) -> None:
    if is_reserved(name):
        raise InvalidInputError(f"{name!r} is what is said where no category fits; give the category another name")

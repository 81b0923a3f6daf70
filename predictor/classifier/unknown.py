"""When nothing known fits: how close an image must be to a known category, so that most of that category's own are.

How close is the highest cosine with a category's row, about the centre (`Classifier.familiarity`). On mini-ImageNet
through efficientnet-lite0 (16 + 64 validation and training categories, 20 known and 20 unknown, 5 shots) that tells
known from unknown with an AUROC of 0.844; the softmax of the scores with 0.81, the distance of the best two with 0.77.

What a network knows beside the taught categories is a background. A photo is then as familiar as the most alike
category: the cosine of its activation with the category's examples, and how alike their profiles are, that is what the
network's own classifier takes them for among its thousand categories. A photo of something else that the network knows
has a profile of its own, and so is unknown; a taught category that is among the thousand, or resembles some of them,
has these in its examples' profiles, so they do not compete with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.phi.network import unit

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
FEWEST = 100  # categories of a network that can be a background
PROFILE = 0.3  # of familiarity: how much profiles count, and the cosine the rest
TEMPERATURE = 1.0  # of the softmax that makes profiles
PSEUDO = 8  # categories at zero that draw the centre there, see `OwnCentre`


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
            raise InvalidInputError(f"the threshold of unknown is a familiarity from -1 to 1, got {threshold}")
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


@dataclass(frozen=True)
class Background:
    """weight (n, dim) and bias (n,): the network's own classifier."""

    weight: Tensor
    bias: Tensor

    def profiles(self, activations: Tensor) -> Tensor:
        """(…, dim) -> (…, n) of unit length: roots of probabilities, whose products say how alike two are."""
        return ((activations @ self.weight.T + self.bias) / TEMPERATURE).softmax(-1).sqrt()

    def fitted(self, support: Sequence[Tensor]) -> FittedBackground:
        """For categories of (n, dim) examples each."""
        roots = [signed_root(examples) for examples in support]
        centre = torch.stack([examples.mean(0) for examples in roots]).sum(0) / (len(roots) + PSEUDO)
        return FittedBackground(self, centre, [self.profiles(examples) for examples in support], roots)


@dataclass(frozen=True)
class FittedBackground:
    """centre (dim,), and of each category what its examples are read as: profiles (n, categories of the network) and
    roots (n, dim)."""

    background: Background
    centre: Tensor
    profiles: Sequence[Tensor]
    roots: Sequence[Tensor]

    @torch.no_grad()
    def alike(self, activations: Tensor) -> Tensor:
        """(n, dim) -> (n, categories): from -1 to 1."""
        seen = unit(signed_root(activations) - self.centre)
        directions, profiles = self.rows()
        return join(seen @ directions.T, self.background.profiles(activations) @ profiles.T)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Unit vectors (categories, dim) about the centre, and profiles (categories, n)."""
        directions = unit(torch.stack([examples.mean(0) for examples in self.roots]) - self.centre)
        return directions, torch.stack([profiles.mean(0) for profiles in self.profiles])

    @torch.no_grad()
    def left_out(self, most: int | None = None) -> list[Tensor]:
        """Of each category how alike its first `most` examples are to the most alike category, their own one made of
        the others; none where there is a single one."""
        found, (directions, known) = [], self.rows()
        for place, (roots, profiles) in enumerate(zip(self.roots, self.profiles, strict=True)):
            count, rest = len(roots[:most]) if len(roots) > 1 else 0, max(1, len(roots) - 1)
            seen = unit(roots[:count] - self.centre)
            alike = join(seen @ directions.T, profiles[:count] @ known.T)
            others = unit((roots.sum(0) - roots[:count]) / rest - self.centre)
            rest_of_profiles = (profiles.sum(0) - profiles[:count]) / rest
            alike[:, place] = join((seen * others).sum(1), (profiles[:count] * rest_of_profiles).sum(1))
            found.append(alike.amax(1))
        return found


def join(cosines: Tensor, profiles: Tensor) -> Tensor:
    return (1 - PROFILE) * cosines + PROFILE * profiles


def signed_root(activations: Tensor) -> Tensor:
    """A few channels of an activation are far larger than the others and would decide its cosines alone."""
    return activations.sign() * activations.abs().sqrt()

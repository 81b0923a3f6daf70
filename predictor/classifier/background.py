"""What a network knows beside the taught categories, as the background that makes a photo unknown.

A photo is as familiar as the most alike category: the cosine of its activation with the category's examples, and how
alike their profiles are, that is what the network's own classifier takes them for among its thousand categories. A
photo of something else that the network knows has a profile of its own, and so is unknown; a taught category that is
among the thousand, or resembles some of them, has these in its examples' profiles, so they do not compete with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from predictor.phi.network import unit

FEWEST = 100  # categories of a network that can be a background
PROFILE = 0.3  # of familiarity: how much profiles count, and the cosine the rest
TEMPERATURE = 1.0  # of the softmax that makes profiles
PSEUDO = 8  # categories at zero that draw the centre there, see `OwnCentre`


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

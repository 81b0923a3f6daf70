"""Mixup: a network is shown blends of two images, and asked for both of their classes in proportion.

Zhang, Cisse, Dauphin and Lopez-Paz, mixup: Beyond Empirical Risk Minimization, ICLR 2018. It helps in trainings so long
that the images themselves are known by heart (docs/results.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from actstore.streams.sampling import Stream, generator


@dataclass(frozen=True)
class Mixture:
    """Image i of a batch counts for `share`, half or more, image partners[i] for the rest."""

    share: float
    partners: Tensor

    def blend(self, images: Tensor) -> Tensor:
        """(n, 3, h, w), each with its partner."""
        return torch.lerp(images[self.partners], images, self.share)


def draw_mixture(count: int, strength: float, seed: int, step: int) -> Mixture:
    """Of a batch of so many images, a pure function of (seed, step); the share is drawn from Beta(strength, strength).

    Neighbours are partners: a batch is in random order anyway, and they stay together where several processes share it
    in even parts. The last of an odd number is shown as it is.
    """
    share = float(generator(seed, step, Stream.MIXUP).beta(strength, strength))
    # both of a pair are shown: which of them counts for more changes nothing but the accuracy on training images
    return Mixture(max(share, 1 - share), (torch.arange(count) ^ 1).clamp_(max=count - 1))

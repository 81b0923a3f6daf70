"""Nearest class mean about the centre of the base categories.

Wang, Chao, Weinberger and van der Maaten, SimpleShot: Revisiting Nearest-Neighbor Classification for Few-Shot Learning,
2019 (their CL2N). Here activations are unit vectors before the centre is taken away as well, so that
long ones do not weigh more.

What all images have in common says nothing of their categories, but lifts every cosine. About the centre the constant
that stand-ins give transferred best where it was measured (docs/results.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from actstore.search.by_class import unit
from actstore.split import Split
from baselines.imprint import mean_directions
from predictor.protocol.method import Separable, Support
from predictor.protocol.stand_ins import Change, as_they_are


class SimpleShot(Separable):
    """A category's score is the cosine of the query with the mean of the category's examples, about the centre."""

    key, name = "simple-shot", "SimpleShot (centred class mean)"

    def __init__(self, train: Split, base: Sequence[str], change: Change = as_they_are) -> None:
        means = mean_directions(train, base, change)  # (n_base, dim)
        self._centre = means.mean(0)
        self._base = self._from_centre(means)

    def base_scores(self, queries: Tensor) -> Tensor:
        return self._from_centre(unit(queries)) @ self._base.to(queries).T

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        return self.episode_scores(support.activations[None], queries[None])[0]

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """(tasks, way, shots, dim) and (tasks, n, dim) -> (tasks, n, way)."""
        return self._from_centre(unit(queries)) @ self._from_centre(unit(support).mean(dim=2)).mT

    def _from_centre(self, directions: Tensor) -> Tensor:
        """(…, dim) -> the same, as unit vectors."""
        return unit(directions - self._centre.to(directions))

"""Nearest class mean about the centre of the base categories.

Wang, Chao, Weinberger and van der Maaten, SimpleShot: Revisiting Nearest-Neighbor Classification for Few-Shot Learning,
2019 (their CL2N). Here activations are unit vectors before the centre is taken away as well, so that
long ones do not weigh more.

What all images have in common says nothing of their categories, but lifts every cosine. About the centre the constant
that stand-ins give transferred best where it was measured (docs/results.md).
"""

from __future__ import annotations

from torch import Tensor

from actstore.search.by_class import unit
from baselines.class_mean import OfEachCategory
from predictor.protocol.base_categories import BaseCategories


class SimpleShot(OfEachCategory):
    """A category's score is the cosine of the query with the mean of the category's examples, about the centre."""

    key, name = "simple-shot", "SimpleShot (centred class mean)"

    def prepare(self, base: BaseCategories) -> None:
        self.base, self._centre = base, base.mean_directions.mean(0)  # (dim,)

    def base_scores(self, queries: Tensor) -> Tensor:
        return self._from_centre(unit(queries)) @ self._from_centre(self.base.mean_directions.to(queries)).T

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        return self._from_centre(unit(queries)) @ self._from_centre(unit(support).mean(dim=2)).mT

    def _from_centre(self, directions: Tensor) -> Tensor:
        """(…, dim) -> the same, as unit vectors."""
        return unit(directions - self._centre.to(directions))

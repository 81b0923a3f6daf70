"""Ridge regression from activations to categories, in closed form, on the examples beside the rows of D_large.

Hoerl and Kennard, Ridge Regression: Biased Estimation for Nonorthogonal Problems, Technometrics 12(1), 1970; as a
few-shot classifier: Bertinetto, Henriques, Torr and Vedaldi, Meta-learning with Differentiable Closed-form Solvers,
ICLR 2019. There a task is of new categories alone and the network is trained through the solution; here the rows of the
base categories are part of the system, and the network stays as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actstore.search.by_class import unit
from baselines.large_sample import LargeSample
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.method import ALL, Method


class Ridge(Method):
    """A score is linear in the query's direction about the centre of the base categories. Every category has the same
    weight in the squared error, whatever its rows; the targets are 1 for its own rows and 0 for all others.

    The rows of novel categories solve the system of base rows and examples together. Those of base categories solve
    it without examples: a base score does not depend on what is learnt.

    strength: of the penalty, in mean eigenvalues of the base's second moments.
    """

    key, name = "ridge", "Ridge regression"

    def __init__(self, seed: int = 0, strength: float = 1.0) -> None:
        self._seed, self._strength = seed, strength

    def prepare(self, base: BaseCategories) -> None:
        self.base = base
        sample = base.once(
            (LargeSample, self._seed, torch.device("cpu")), lambda: LargeSample.of_base(base, self._seed)
        )
        self.share, self.paper_share = sample.share, ALL
        solved = base.once((Ridge, self._seed, self._strength), lambda: _solve(sample, self._strength))
        self._centre, self._inverse, self._rows = solved

    def base_scores(self, queries: Tensor) -> Tensor:
        return self._read(queries) @ self._rows.T

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self.episode_scores(support[None], queries[None])[0]

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """The inverse of the base's system is extended by the examples (Woodbury's identity)."""
        examples = self._read(support)  # (tasks, way, shots, dim)
        means, known = examples.mean(2), examples.flatten(1, 2) / (len(self._rows) * examples.shape[2]) ** 0.5
        through = known @ self._inverse  # (tasks, way * shots, dim)
        inner = through @ known.mT
        inner.diagonal(dim1=1, dim2=2).add_(1)
        rows = means @ self._inverse - (through @ means.mT).mT @ torch.linalg.solve(inner, through)
        return torch.matmul(self._read(queries), rows.mT)

    def _read(self, activations: Tensor) -> Tensor:
        return unit(activations) - self._centre


def _solve(sample: LargeSample, strength: float) -> tuple[Tensor, Tensor, Tensor]:
    """The centre (dim,), the inverse of the base's second moments with the penalty (dim, dim), and the base's rows."""
    units, targets = unit(sample.activations), sample.targets
    counts = torch.bincount(targets)
    means = torch.zeros(len(counts), units.shape[1]).index_add_(0, targets, units) / counts[:, None]
    centre = means.mean(0)
    weighted = (units - centre) / (len(counts) * counts[targets, None]).sqrt()  # mean: a scale for any number of them
    moments = (weighted.T @ weighted).double()
    moments.diagonal().add_(strength * moments.diagonal().mean())
    inverse = torch.linalg.inv(moments).float()
    return centre, inverse, (means - centre) @ inverse

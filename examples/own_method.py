"""A method of one's own beside all others: ridge regression from examples to categories, in one short class.

python examples/own_method.py [STORE]        # without a store, on rows that it generates
ppa eval --methods own_method:Ridge,class-mean        # the same class, where this file lies
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import torch
from torch import Tensor

import actstore
import baselines
import predictor


class Ridge(predictor.JointMethod):
    """Scores of a linear map that is fitted in closed form on the means of all categories, each counted once."""

    name, key = "Ridge regression on means", "ridge-on-means"
    strength = 0.1

    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        """(n, dim) and (ways, shots, dim) -> (n, n_base + ways)."""
        known = torch.cat([self.base.means, support.mean(1)])  # (n_base + ways, dim)
        known = torch.nn.functional.normalize(known, dim=1)
        inside = known @ known.T + self.strength * torch.eye(len(known))
        weights = torch.linalg.solve(inside, known)  # (n_base + ways, dim)
        return torch.nn.functional.normalize(queries, dim=1) @ weights.T


def main(path: str | None) -> None:
    if path is None:
        random = np.random.default_rng(0)
        centres, parts = random.random((40, 64)), {}
        for part, count in (("train", 50), ("val", 20)):
            labels = np.repeat(np.arange(40), count)
            parts[part] = (np.abs(centres[labels] + 0.6 * random.standard_normal((len(labels), 64))), labels)
        path = f"{tempfile.mkdtemp()}/generated.zarr"
        actstore.from_arrays(path, parts, classes=[f"category {number:02}" for number in range(40)])
    store = actstore.open(path)
    split = predictor.split_categories(store, novel=0.25)
    methods = [Ridge(), *baselines.make("class-mean", "simple-shot")]
    print(predictor.evaluate(methods, store, split, shots=(1, 5), draws=5, calibrate=True))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)

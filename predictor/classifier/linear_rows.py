"""A classifier as one linear layer: rows of parameters, where equal statistics have equal rows to the last bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from predictor.phi.rule import Rule


@dataclass(frozen=True)
class Rows:
    """The classifier as one linear layer: row i scores category `category[i]`, the highest row counts.

    weight: (rows, dim). bias: (rows,). category: (rows,) positions among the categories, ascending. same_as: (rows,)
    the first row with the same weight, None where all differ: its product counts for all of them, as a product may
    round equal rows differently, by where they stand.
    """

    weight: Tensor
    bias: Tensor
    category: Tensor
    same_as: Tensor | None = None

    def scores(self, read: Tensor) -> Tensor:
        """(n, dim), read as the rule reads activations -> (n, rows)."""
        if self.same_as is None:
            return torch.addmm(self.bias, read, self.weight.T)
        return torch.mm(read, self.weight.T)[:, self.same_as] + self.bias

    def highest(self, of_rows: Tensor, n_categories: int) -> Tensor:
        """(n, rows) -> (n, n_categories): of each category its highest row."""
        if len(self.category) == n_categories:
            return of_rows
        best = of_rows.new_full((len(of_rows), n_categories), -torch.inf)
        return best.scatter_reduce_(1, self.category.expand_as(of_rows), of_rows, "amax")


def each_once(rule: Rule, statistics: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (n, dim) and offsets (n,) of statistics (n, dim)."""
    same_as = first_equal(statistics)
    if same_as is None:
        rows = rule.parameters(statistics)
        return rows, rule.offsets(rows)
    first, place = np.unique(same_as.numpy(), return_inverse=True)
    rows = rule.parameters(statistics[torch.from_numpy(first)])
    again = torch.from_numpy(place)
    return rows[again], rule.offsets(rows)[again]


def first_equal(rows: Tensor) -> Tensor | None:
    """(n, dim) float32 -> (n,) the first row with the bits of each; None where no two are equal."""
    content = rows.detach().cpu().contiguous().numpy()
    sums = content.view(np.int32).sum(axis=1, dtype=np.int64)  # exact in any order; nearly always they differ
    if len(np.unique(sums)) == len(sums):
        return None
    first: dict[bytes, int] = {}
    return torch.tensor([first.setdefault(row.tobytes(), place) for place, row in enumerate(content)])


def ranked(scores: Tensor, top: int) -> list[list[tuple[int, float]]]:
    """(n, n_categories) -> per row the first `top` categories with their probabilities, best first; of equal scores the
    lower category comes first."""
    places = scores.argsort(dim=1, descending=True, stable=True)[:, :top]
    shares = scores.softmax(1).gather(1, places)
    return [list(zip(*row, strict=True)) for row in zip(places.tolist(), shares.tolist(), strict=True)]

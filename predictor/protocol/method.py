"""What a recogniser offers, so that phi and every baseline are measured by the same code on the same draws.

An all-way task holds the base categories (C_large), which a method knows from the store, and the novel ones
(C_few), of which it is shown a few examples. Scores are in the order base, then novel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.protocol.outcome import Queries

ALL = "100%"  # of D_large


@dataclass(frozen=True)
class Support:
    """The few examples of every novel category, the same number of each.

    activations: (n_novel, shots, dim) float32. rows: (n_novel, shots), where they are in the split.
    """

    activations: Tensor
    rows: NDArray[np.int64]

    @property
    def shots(self) -> int:
        return self.activations.shape[1]


class Method(ABC):
    """A recogniser of base and novel categories.

    key: a short word that tables keep, by which figures know the method; without one they know it by its name.
    variant: what was chosen for it, where the same method is measured in several ways. paper_name: the row of the
    paper's table that it answers to, where its own name says more. share: how much of D_large is in use; paper_share:
    as the paper's row has it, where that is another. finetuned: whether adapting to the novel categories trains
    anything. uses_support: False where the scores are the same for every draw. only_draw: (shots, number) of the single
    draw that a method was trained for, where it cannot be asked about others. constants: number of shots -> what is
    added to the novel scores in a further row, where calibration found it. fitted_on: what those were fitted on.
    """

    name: str
    key: str = ""
    variant: str = ""
    share: str = ALL
    paper_share: str | None = None
    finetuned: bool = False
    uses_support: bool = True
    paper_name: str | None = None
    only_draw: tuple[int, int] | None = None
    constants: Mapping[int, float] = MappingProxyType({})
    fitted_on: str = ""

    @abstractmethod
    def scores(self, queries: Tensor, support: Support) -> Tensor:
        """(n, dim) float32 -> (n, n_base + n_novel); the highest wins, the lower category where two are equal."""

    def table_scores(self, asked: Queries, support: Support) -> Tensor:
        """As `scores`, of queries whose categories are known. Minus infinity may stand for what no figure depends on:
        among the base categories, and among the novel ones, all that come after the first outcome.TOP of a query, or
        after the true one."""
        return self.scores(asked.activations, support)


class Separable(Method):
    """A method whose base scores do not depend on the support, so that many draws share them."""

    @abstractmethod
    def base_scores(self, queries: Tensor) -> Tensor:
        """(n, dim) -> (n, n_base)."""

    def table_base_scores(self, asked: Queries) -> Tensor:
        """As `base_scores`, with minus infinity where `table_scores` may have it."""
        return self.base_scores(asked.activations)

    @abstractmethod
    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        """(n, dim) -> (n, n_novel)."""

    def query_lengths(self, queries: Tensor) -> Tensor:
        """(n, dim) -> (n,): what a score grows with, whatever the category; 1 where scores are cosines."""
        return queries.new_ones(len(queries))

    def scores(self, queries: Tensor, support: Support) -> Tensor:
        return torch.cat([self.base_scores(queries), self.novel_scores(queries, support)], dim=1)


class EpisodeMethod(Protocol):
    """A recogniser of N-way K-shot tasks, many of them at a time."""

    @property
    def name(self) -> str: ...

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """(tasks, way, shots, dim) and (tasks, n, dim) -> (tasks, n, way)."""
        ...

"""What a recogniser offers, so that phi, every baseline and your own method are measured by the same code.

A method scores queries (n, dim) for categories. It is told what is known of the base categories (C_large) once, by
`prepare`, and is shown a few examples of each novel category (C_few) as a tensor (ways, shots, dim) with each question.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.split import Split
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.outcome import Queries

if TYPE_CHECKING:
    from predictor.protocol.calibration import Calibration

ALL = "100%"  # of D_large
Aggregate = Literal["max", "mean"]


class Method(ABC):
    """A recogniser of base and novel categories. One abstract method and a name make one:

    class NearestMean(Method):
        name = "nearest mean"

        def novel_scores(self, queries, support):
            return -torch.cdist(queries, support.mean(1))

    key: a short word that tables keep, by which figures know the method; without one they know it by its name.
    variant: what was chosen for it, where the same method is measured in several ways. paper_name: the row of the
    paper's table that it answers to, where its own name says more; episode_name: that of the table of 5-way tasks.
    share: how much of D_large is in use; paper_share: as the paper's row has it, where that is another. finetuned:
    whether adapting to the novel categories trains anything. uses_support: False where the scores are the same for
    every draw. only_draw: (shots, number) of the single draw that it was trained for, and only_rows those examples,
    where it cannot be asked about others. store: whose activations it reads, where that is not the store it is
    evaluated on; the same images in the same rows. folder: where its calibrations are kept; calibrations: those that
    were given by hand. aggregate: how several examples are combined, of `aggregates` that it can.
    scores_categories_apart: whether the score of a category depends on the examples of that category alone.
    """

    name: str
    key: str = ""
    variant: str = ""
    share: str = ALL
    paper_share: str | None = None
    paper_name: str | None = None
    episode_name: str | None = None
    finetuned: bool = False
    uses_support: bool = True
    only_draw: tuple[int, int] | None = None
    only_rows: NDArray[np.int64] | None = None
    store: Path | None = None
    folder: Path | None = None
    aggregates: tuple[Aggregate, ...] = ()
    aggregate: Aggregate | None = None
    calibrations: Sequence[Calibration] = ()
    scores_categories_apart: bool = False
    base: BaseCategories

    def __init_subclass__(cls) -> None:
        """A method without a name is called as its class."""
        if not hasattr(cls, "name") and "name" not in getattr(cls, "__annotations__", {}):
            cls.name = cls.__name__

    def __repr__(self) -> str:
        return f"<{self.name}, {self.share} of D_large>"

    def prepare(self, base: BaseCategories) -> None:
        """Called before scores are asked for, and again for other base categories: the place for what is computed of
        `base.means` once. Set `self.base = base` where you define it."""
        self.base = base

    def base_scores(self, queries: Tensor) -> Tensor:
        """(n, dim) -> (n, n_base). A base category is scored as a novel one of which its mean is the only example."""
        return self.novel_scores(queries, self.base.means[:, None].to(queries))

    @abstractmethod
    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        """(n, dim) and (ways, shots, dim) float32 -> (n, ways)."""

    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        """(n, dim) and (ways, shots, dim) -> (n, n_base + ways); the highest wins, of equal ones the first."""
        return torch.cat([self.base_scores(queries), self.novel_scores(queries, support)], dim=1)

    def table_base_scores(self, asked: Queries) -> Tensor:
        """As `base_scores`, of queries whose categories are known. Minus infinity may stand for what no figure depends
        on: all categories that come after the first outcome.TOP of a query, or after the true one."""
        return self.base_scores(asked.activations)

    def query_lengths(self, queries: Tensor) -> Tensor:
        """(n, dim) -> (n,): what a score grows with, whatever the category; 1 where scores are cosines."""
        return queries.new_ones(len(queries))

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """Many tasks: (tasks, way, shots, dim) and (tasks, n, dim) -> (tasks, n, way)."""
        return torch.stack([self.novel_scores(*task) for task in zip(queries, support, strict=True)])

    def check(self, train: Split, categories: CategorySplit) -> None:  # noqa: B027 - most belong to any
        """Refuse rows or categories that it does not belong to."""

    def as_method(self, aggregate: Aggregate | None = None) -> Method:
        """Itself: `evaluate` also takes what makes a method, such as a trained phi."""
        return self


class JointMethod(Method):
    """A method that scores all categories together: its base scores depend on the examples that it is shown."""

    @abstractmethod
    def scores(self, queries: Tensor, support: Tensor) -> Tensor: ...

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self.scores(queries, support)[:, len(self.base.names) :]

    def table_scores(self, asked: Queries, support: Tensor) -> Tensor:
        """As `scores`, with minus infinity where `table_base_scores` may have it, of base and novel ones apart."""
        return self.scores(asked.activations, support)


class EpisodeMethod(Protocol):
    """A recogniser of N-way K-shot tasks, many of them at a time; of rows, or of images."""

    @property
    def name(self) -> str: ...

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """(tasks, way, shots, …) and (tasks, n, …) -> (tasks, n, way)."""
        ...


class MakesMethod(Protocol):
    """A method, or what makes one, such as a trained phi."""

    def as_method(self, aggregate: Aggregate | None = None) -> Method: ...

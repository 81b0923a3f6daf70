"""What a recogniser offers, so that phi, every baseline and your own method are measured by the same code.

A method scores queries (n, dim) for categories. It is told what is known of the base categories (C_large) once, by
`prepare`, and is shown a few examples of each novel category (C_few) as a tensor (ways, shots, dim) with each question.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from inspect import get_annotations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.split import Split
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.outcome import Queries

if TYPE_CHECKING:
    from predictor.protocol.calibration import Calibration

ALL = "100%"  # of D_large
Aggregate = Literal["max", "mean"]


class Method(ABC):
    """A recogniser of base and novel categories; a class with `novel_scores` is a method of your own.

    Attributes:
        name: what the method is called; by default the name of its class.
        key: a short word by which tables, pictures and kept constants know it; by default its name.
        variant: what was chosen for it, where one method is measured in several ways.
        share: how much of D_large is in use.
        paper_share: the share in the paper's row, where it is another one.
        paper_name: the row of the paper's table that it answers to.
        episode_name: its row in the table of 5-way tasks.
        finetuned: whether adapting to the novel categories trains anything.
        uses_support: False where scores are the same for every draw of examples.
        only_draw: (shots, number) of the single draw that it was trained for.
        only_rows: the examples of that draw.
        store: the store whose activations it reads, where that is not the one it is measured on.
        folder: where its calibrations are kept.
        aggregates: other ways of combining several examples, among which calibration may choose.
        aggregate: how it combines several examples.
        calibrations: constants that were given by hand.
        scores_categories_apart: whether the score of a category depends on the examples of that category alone; only
            then `run_episodes` gives an AUROC.
        trained_on_base: whether it was trained on rows of the base categories, which stand in for novel ones when a
            constant is fitted.
        named_by: the options by which `ppa calibrate` is told to fit it, such as "--methods nn".

    Examples:
        >>> class NearestMean(predictor.Method):
        ...     def novel_scores(self, queries, support):
        ...         return -torch.cdist(queries, support.mean(1))
        >>> results = predictor.evaluate(NearestMean(), store, split, shots=1, draws=2)
        >>> results.records[0]["method"]
        'NearestMean'
    """

    name: str
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
    trained_on_base: bool = False
    named_by: str = ""
    base: BaseCategories

    @cached_property
    def key(self) -> str:
        return self.name

    def __init_subclass__(cls) -> None:
        """A method without a name of its own is called as its class."""
        has_own = "name" in cls.__dict__ or "name" in get_annotations(cls)
        if not has_own and isinstance(getattr(cls, "name", ""), str):  # a property may give it
            cls.name = cls.__name__

    def __repr__(self) -> str:
        return f"<{self.name}, {self.share} of D_large>"

    def prepare(self, base: BaseCategories) -> None:
        """Compute what scores need of the base categories, which are in `self.base` by then.

        It is called before scores are asked for, and again for other base categories.

        Args:
            base: names, means, and where there is a store, rows of the base categories.
        """
        self.base = base

    def prepare_for(self, base: BaseCategories) -> None:
        """Tell the method what is known of the base categories, as measurements do: set `base`, and call `prepare`.

        Args:
            base: as in `prepare`.
        """
        self.base = base
        self.prepare(base)

    def base_scores(self, queries: Tensor) -> Tensor:
        """Score queries for the base categories; by default like novel ones whose only example is their mean.

        Args:
            queries: (n, dim) in float32.

        Returns:
            (n, n_base).
        """
        return self._checked_novel_scores(queries, self.base.means[:, None].to(queries))

    def _checked_novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        scores = self.novel_scores(queries, support)
        return require_scores(self, "novel_scores", scores, (len(queries), len(support)), "(n, ways)")

    @abstractmethod
    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score queries for the novel categories.

        Args:
            queries: (n, dim) in float32.
            support: (ways, shots, dim) in float32, the examples of each category.

        Returns:
            (n, ways).
        """

    def combined_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score queries for the novel categories, with several examples combined as `aggregate` says.

        Args:
            queries: (n, dim) in float32.
            support: (ways, shots, dim) in float32, the examples of each category.

        Returns:
            (n, ways).
        """
        ways, shots, _ = support.shape
        if shots == 1 or self.aggregate == type(self).aggregate:
            return self._checked_novel_scores(queries, support)
        if self.aggregate == "mean":
            return self._checked_novel_scores(queries, support.mean(1, keepdim=True))
        return (
            self._checked_novel_scores(queries, support.flatten(0, 1)[:, None])
            .reshape(len(queries), ways, shots)
            .amax(2)
        )

    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score queries for all categories; the highest score wins, and of equal ones the first.

        Args:
            queries: (n, dim) in float32.
            support: (ways, shots, dim) in float32, the examples of each novel category.

        Returns:
            (n, n_base + ways).
        """
        return torch.cat([self.base_scores(queries), self.novel_scores(queries, support)], dim=1)

    def table_base_scores(self, asked: Queries) -> Tensor:
        """Score queries whose categories are known for the base categories, as `base_scores` does.

        Minus infinity may stand for a score that no figure depends on, which is any behind the first five of a query
        and behind its true category.

        Args:
            asked: activations (n, dim) and their categories.

        Returns:
            (n, n_base).
        """
        scores, expected = self.base_scores(asked.activations), (len(asked.activations), len(self.base.names))
        return require_scores(self, "base_scores", scores, expected, "(n, n_base)")

    def query_lengths(self, queries: Tensor) -> Tensor:
        """Give the factor by which all scores of a query grow; 1 where scores are cosines.

        Args:
            queries: (n, dim) in float32.

        Returns:
            (n,).
        """
        return queries.new_ones(len(queries))

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """Score the queries of many tasks at once.

        Args:
            support: (tasks, way, shots, dim), the examples.
            queries: (tasks, n, dim).

        Returns:
            (tasks, n, way).
        """
        return torch.stack([self._checked_novel_scores(*task) for task in zip(queries, support, strict=True)])

    def check(self, train: Split, categories: CategorySplit) -> None:  # noqa: B027 - most belong to any
        """Refuse rows or categories that the method does not belong to; most methods belong to any.

        Args:
            train: the split that examples come from.
            categories: base and novel categories.
        """

    def as_method(self, aggregate: Aggregate | None = None) -> Method:
        """Give the method itself; `evaluate` also takes what makes a method, such as a trained phi.

        Args:
            aggregate: how several examples are combined.
        """
        return self


class JointMethod(Method):
    """A method whose base scores depend on the examples of novel categories, such as one that trains on both.

    It defines `scores` for all categories together.
    """

    @abstractmethod
    def scores(self, queries: Tensor, support: Tensor) -> Tensor: ...

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self.scores(queries, support)[:, len(self.base.names) :]

    def table_scores(self, asked: Queries, support: Tensor) -> Tensor:
        """Score queries whose categories are known for all categories, as `scores` does.

        Minus infinity may stand where `table_base_scores` allows it.

        Args:
            asked: activations (n, dim) and their categories.
            support: (ways, shots, dim), the examples of each novel category.

        Returns:
            (n, n_base + ways).
        """
        scores = self.scores(asked.activations, support)
        expected = len(asked.activations), len(self.base.names) + len(support)
        return require_scores(self, "scores", scores, expected, "(n, n_base + ways)")


def require_scores(method: EpisodeMethod, what: str, scores: Any, expected: tuple[int, ...], axes: str) -> Tensor:
    """The scores that a method gave, without gradients. Another shape, or what is no tensor, would be met far from its
    cause."""
    if isinstance(scores, Tensor) and scores.shape == expected:
        return scores.detach()
    got = type(scores).__name__ if not isinstance(scores, Tensor) else tuple(scores.shape)
    raise InvalidInputError(f"{method.name}: {what} must give a tensor {axes} = {expected}, got {got}")


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

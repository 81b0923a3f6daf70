"""Upper bounds: what the fixed activations allow when all the data of both sets is at hand.

The "Oracles" of Qiao, Liu, Shen and Yuille, Few-Shot Image Recognition by Predicting Parameters from Activations,
CVPR 2018: nearest neighbour, and a linear classifier. Neither looks at the support.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actstore.search.by_class import ClassRows, best_by_class
from actstore.search.engines import LeadingClasses, SearchChoice, wanted_classes
from actstore.split import Split
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head, head_for
from predictor.protocol.method import JointMethod
from predictor.protocol.outcome import TOP, Queries


class NearestOracle(JointMethod):
    """Nearest neighbour with cosine over all rows of base and novel categories."""

    key, name, paper_name = "oracle-nn", "Oracle NN", "NN"
    uses_support = False

    def __init__(
        self,
        novel: Sequence[str],
        search: SearchChoice = SearchChoice(),  # noqa: B008 - frozen
    ) -> None:
        self._names, self._search = tuple(novel), search

    def check(self, train: Split, categories: CategorySplit) -> None:
        self._names = tuple(categories.novel)  # those that are measured

    def prepare(self, base: BaseCategories) -> None:
        self.base, index = base, base.rows_of_split.class_index
        names = (base.names, self._names, (*base.names, *self._names))
        self._base, self._novel, self._rows = (ClassRows.of(index, index.positions(part)) for part in names)

    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return best_by_class(self.base.rows_of_split, self._rows, queries.to(self._search.place)).cpu()

    def table_scores(self, asked: Queries, support: Tensor) -> Tensor:
        """Base and novel categories apart: of both the first are needed."""
        queries, count = asked.activations, len(asked.base_targets)
        nowhere = asked.novel_targets.new_full((count,), -1)
        base, novel = (
            LeadingClasses(self.base.rows_of_split, rows, self._search) for rows in (self._base, self._novel)
        )
        return torch.cat([
            base.scores(queries, wanted_classes(asked.base_targets, len(queries)), TOP),
            novel.scores(queries, torch.cat([nowhere, asked.novel_targets]), TOP),
        ], dim=1)  # fmt: skip


class LinearOracle(JointMethod):
    """A linear classifier that was trained on all rows of base and novel categories."""

    key, name, paper_name = "oracle-linear", "Oracle linear", "Linear"
    finetuned = True
    uses_support = False

    def __init__(self, head: Head, novel: Sequence[str]) -> None:
        self._given, self._novel = head, tuple(novel)

    def check(self, train: Split, categories: CategorySplit) -> None:
        self._novel = tuple(categories.novel)  # those that are measured

    def prepare(self, base: BaseCategories) -> None:
        self.base, self._head = base, head_for(self._given, (*base.names, *self._novel), base.dim)

    def scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self._head.scores(queries)

"""Upper bounds: what the fixed activations allow when all the data of both sets is at hand.

The "Oracles" of Qiao, Liu, Shen and Yuille, Few-Shot Image Recognition by Predicting Parameters from Activations,
CVPR 2018: nearest neighbour, and a linear classifier. Neither looks at the support.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actstore.search.by_class import ClassRows, best_by_class
from actstore.search.leading import LeadingClasses, SearchChoice, wanted_classes
from actstore.split import Split
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head, head_for
from predictor.protocol.method import Method, Support
from predictor.protocol.outcome import TOP, Queries


class NearestOracle(Method):
    """Nearest neighbour with cosine over all rows of base and novel categories."""

    key, name, paper_name = "oracle-nn", "Oracle NN", "NN"
    uses_support = False

    def __init__(
        self,
        train: Split,
        split: CategorySplit,
        search: SearchChoice = SearchChoice(),  # noqa: B008 - frozen
    ) -> None:
        index = train.class_index
        self._train, self._search = train, search
        self._base, self._novel = (ClassRows.of(index, index.positions(names)) for names in (split.base, split.novel))
        self._rows = ClassRows.of(index, index.positions((*split.base, *split.novel)))

    def scores(self, queries: Tensor, support: Support) -> Tensor:
        return best_by_class(self._train, self._rows, queries.to(self._search.place)).cpu()

    def table_scores(self, asked: Queries, support: Support) -> Tensor:
        """Base and novel categories apart: of both the first are needed."""
        queries, count = asked.activations, len(asked.base_targets)
        nowhere = asked.novel_targets.new_full((count,), -1)
        base, novel = (LeadingClasses(self._train, rows, self._search) for rows in (self._base, self._novel))
        return torch.cat([
            base.scores(queries, wanted_classes(asked.base_targets, len(queries)), TOP),
            novel.scores(queries, torch.cat([nowhere, asked.novel_targets]), TOP),
        ], dim=1)  # fmt: skip


class LinearOracle(Method):
    """A linear classifier that was trained on all rows of base and novel categories."""

    key, name, paper_name = "oracle-linear", "Oracle linear", "Linear"
    finetuned = True
    uses_support = False

    def __init__(self, head: Head, split: CategorySplit, dim: int) -> None:
        self._head = head_for(head, (*split.base, *split.novel), dim)

    def scores(self, queries: Tensor, support: Support) -> Tensor:
        return self._head.scores(queries)

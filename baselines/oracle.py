"""Upper bounds: what the fixed activations allow when all the data of both sets is at hand.

The "Oracles" of Qiao, Liu, Shen and Yuille, Few-Shot Image Recognition by Predicting Parameters from Activations,
CVPR 2018: nearest neighbour, and a linear classifier. Neither looks at the support.
"""

from __future__ import annotations

from torch import Tensor

from actstore.search.by_class import ClassRows, best_by_class
from actstore.split import Split
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head, head_for
from predictor.protocol.method import Method, Support


class NearestOracle(Method):
    """Nearest neighbour with cosine over all rows of base and novel categories."""

    key, name, paper_name = "oracle-nn", "Oracle NN", "NN"
    uses_support = False

    def __init__(self, train: Split, split: CategorySplit) -> None:
        index = train.class_index
        self._train = train
        self._rows = ClassRows.of(index, index.positions((*split.base, *split.novel)))

    def scores(self, queries: Tensor, support: Support) -> Tensor:
        return best_by_class(self._train, self._rows, queries)


class LinearOracle(Method):
    """A linear classifier that was trained on all rows of base and novel categories."""

    key, name, paper_name = "oracle-linear", "Oracle linear", "Linear"
    finetuned = True
    uses_support = False

    def __init__(self, head: Head, split: CategorySplit, dim: int) -> None:
        self._head = head_for(head, (*split.base, *split.novel), dim)

    def scores(self, queries: Tensor, support: Support) -> Tensor:
        return self._head.scores(queries)

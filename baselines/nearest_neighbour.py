"""Nearest neighbour with cosine similarity, over all of D_large or a share of each of its categories.

The baseline "NN + Cosine" of Qiao, Liu, Shen and Yuille, Few-Shot Image Recognition by Predicting Parameters from
Activations, CVPR 2018. The rule itself: Cover and Hart, Nearest Neighbor Pattern Classification, IEEE Transactions
on Information Theory 13(1), 1967.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.layout.class_index import ClassIndex
from actstore.search.by_class import ClassRows, best_by_class, unit
from actstore.split import Split
from actstore.streams.sampling import Stream, generator
from predictor.protocol.method import Separable, Support
from predictor.protocol.stand_ins import Change, as_they_are

SHARES = (1.0, 0.1, 0.01)


class NearestNeighbour(Separable):
    """A category's score is the highest cosine of the query with any of its examples.

    share: of the rows of each base category, drawn with the seed, at least one. embed: (n, dim) -> (n, any),
    applied to queries, rows and support alike. change: of the base's rows, before that; queries and support are changed
    already.
    """

    def __init__(
        self,
        train: Split,
        base: Sequence[str],
        share: float = 1.0,
        seed: int = 0,
        embed: Callable[[Tensor], Tensor] | None = None,
        name: str = "NN+Cosine",
        paper_name: str | None = None,
        key: str = "nn",
        change: Change = as_they_are,
    ) -> None:
        self.key, self.name, self.paper_name, self.share = key, name, paper_name, f"{share:.0%}"
        self._train, self._embed, self._change = train, embed, change
        self._held: tuple[Tensor, int, Tensor] | None = None
        index = train.class_index
        self._rows = draw_share(index, index.positions(base), share, seed)

    def base_scores(self, queries: Tensor) -> Tensor:
        return best_by_class(
            self._train, self._rows, self._mapped(queries), lambda rows: self._mapped(self._change(rows))
        )

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        return self._best(support.activations[None], self._units(queries)[None])[0]

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """(tasks, way, shots, dim) and (tasks, n, dim) -> (tasks, n, way)."""
        return self._best(support, unit(self._mapped(queries)))

    def _best(self, support: Tensor, units: Tensor) -> Tensor:
        way, shots = support.shape[1:3]
        examples = unit(self._mapped(support.flatten(1, 2)))  # (tasks, way * shots, dim)
        cosines = units @ examples.mT  # (tasks, n, way * shots)
        return cosines.view(*cosines.shape[:2], way, shots).amax(dim=3)

    def _units(self, queries: Tensor) -> Tensor:
        """Of length 1, embedded; kept for the next draw, which asks about the same queries."""
        if self._held is None or self._held[0] is not queries or self._held[1] != queries._version:
            self._held = (queries, queries._version, unit(self._mapped(queries)))
        return self._held[2]

    def _mapped(self, values: Tensor) -> Tensor:
        return values if self._embed is None else self._embed(values)


def draw_share(index: ClassIndex, labels: Sequence[int] | NDArray[Any], share: float, seed: int) -> ClassRows:
    """A share of the rows of each class, ascending. A smaller share is part of a larger one of the same seed."""
    if not 0 < share <= 1:
        raise InvalidInputError(f"share must be above 0 and at most 1, got {share}")
    if share == 1:
        return ClassRows.of(index, labels)
    groups = []
    for label in labels:
        rows = index.rows(int(label))
        count = min(len(rows), max(1, round(share * len(rows))))
        order = generator(seed, int(label), Stream.NEIGHBOUR_SHARES).permutation(len(rows))
        groups.append(rows[sorted(order[:count].tolist())])
    return ClassRows.joined(groups, [index.names[int(label)] for label in labels])

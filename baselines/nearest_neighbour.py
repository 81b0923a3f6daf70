"""Nearest neighbour with cosine similarity, over all of D_large or a share of each of its categories.

The baseline "NN + Cosine" of Qiao, Liu, Shen and Yuille, Few-Shot Image Recognition by Predicting Parameters from
Activations, CVPR 2018. The rule itself: Cover and Hart, Nearest Neighbor Pattern Classification, IEEE Transactions
on Information Theory 13(1), 1967.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.layout.class_index import ClassIndex
from actstore.search.by_class import ClassRows, best_by_class, unit
from actstore.search.leading import LeadingClasses, SearchChoice, wanted_classes
from actstore.split import Split
from actstore.streams.sampling import Stream, generator
from predictor.protocol.method import Separable, Support
from predictor.protocol.outcome import TOP, Queries
from predictor.protocol.stand_ins import Change, as_they_are

SHARES = (1.0, 0.1, 0.01)
_HELD_BYTES = 1 << 28  # of scores that are kept for the next share of D_large
Embed = Callable[[Tensor], Tensor]  # (…, dim) -> (…, any)


class ExampleScores:
    """The highest cosine of queries with any of a category's examples; shared by methods that differ in what they know
    of the base alone, which ask about the same draws one after the other.

    Products are float64's, and cosines then float32's, as searches round theirs: equal rows have equal scores, wherever
    they are.
    """

    def __init__(self, embed: Embed | None = None) -> None:
        self._embed = embed
        self._asked: tuple[Tensor, int, Tensor] | None = None
        self._scores: dict[bytes, Tensor] = {}  # of the queries asked last, by an example of each category

    def of(self, queries: Tensor, support: Support) -> Tensor:
        """(n, dim) -> (n, n_novel)."""
        units = self._units(queries)
        best, *others = (self._of_each(units, examples) for examples in support.activations.unbind(1))
        for scores in others:
            best = torch.maximum(best, scores)
        return best

    def _of_each(self, units: Tensor, examples: Tensor) -> Tensor:
        """One example of each category (n_novel, dim) -> (n, n_novel). A draw of more examples begins with those of
        one of fewer, so they are met again."""
        key = hashlib.sha256(examples.contiguous().numpy().data).digest()
        if key in self._scores:
            return self._scores[key]
        scores = (units @ unit(self._mapped(examples).double()).T).float()
        if (len(self._scores) + 1) * scores.nbytes <= _HELD_BYTES:
            self._scores[key] = scores
        return scores

    def _units(self, queries: Tensor) -> Tensor:
        """Of length 1, embedded; kept for the next draw, which asks about the same queries."""
        if self._asked is None or self._asked[0] is not queries or self._asked[1] != queries._version:
            self._asked = (queries, queries._version, unit(self._mapped(queries).double()))
            self._scores = {}
        return self._asked[2]

    def _mapped(self, values: Tensor) -> Tensor:
        return values if self._embed is None else self._embed(values)


class NearestNeighbour(Separable):
    """A category's score is the highest cosine of the query with any of its examples.

    share: of the rows of each base category, drawn with the seed, at least one. embed: applied to queries, rows and
    support alike. embedded: the rows after it, kept where they can be searched; made when they are needed, and None
    where they cannot be kept. change: of the base's rows, before that; queries and support are changed already.
    search: how tables find the nearest. examples: shared with other shares.
    """

    def __init__(
        self,
        train: Split,
        base: Sequence[str],
        share: float = 1.0,
        seed: int = 0,
        embed: Embed | None = None,
        name: str = "NN+Cosine",
        paper_name: str | None = None,
        key: str = "nn",
        change: Change = as_they_are,
        embedded: Callable[[], Split | None] | None = None,
        search: SearchChoice = SearchChoice(),  # noqa: B008 - frozen
        examples: ExampleScores | None = None,
    ) -> None:
        self.key, self.name, self.paper_name, self.share = key, name, paper_name, f"{share:.0%}"
        self._train, self._embed, self._change, self._embedded = train, embed, change, embedded
        self._search, self._examples = search, examples or ExampleScores(embed)
        index = train.class_index
        self._rows = draw_share(index, index.positions(base), share, seed)

    def base_scores(self, queries: Tensor) -> Tensor:
        asked = self._mapped(queries.to(self._search.place))
        found = best_by_class(self._train, self._rows, asked, lambda rows: self._mapped(self._change(rows)))
        return found.cpu()

    def table_base_scores(self, asked: Queries) -> Tensor:
        rows = self._searchable()
        if rows is None:
            return self.base_scores(asked.activations)
        leading = LeadingClasses(rows, self._rows, self._search)
        targets = wanted_classes(asked.base_targets, len(asked.activations))
        return leading.scores(self._mapped(asked.activations), targets, TOP)

    def _searchable(self) -> Split | None:
        """Rows that an engine can search: as they are stored, or embedded and kept; None where calibration changes
        them, in every task in another way."""
        if self._change is not as_they_are:
            return None
        if self._embed is None:
            return self._train
        return None if self._embedded is None else self._embedded()

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        return self._examples.of(queries, support)

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """(tasks, way, shots, dim) and (tasks, n, dim) -> (tasks, n, way)."""
        way, shots = support.shape[1:3]
        examples = unit(self._mapped(support.flatten(1, 2)))  # (tasks, way * shots, dim)
        cosines = unit(self._mapped(queries)) @ examples.mT  # (tasks, n, way * shots)
        return cosines.view(*cosines.shape[:2], way, shots).amax(dim=3)

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

"""Nearest neighbour with cosine similarity, over all of D_large or a share of each of its categories.

The baseline "NN + Cosine" of Qiao, Liu, Shen and Yuille, Few-Shot Image Recognition by Predicting Parameters from
Activations, CVPR 2018. The rule itself: Cover and Hart, Nearest Neighbor Pattern Classification, IEEE Transactions
on Information Theory 13(1), 1967.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from actstore.search.by_class import ClassRows, best_by_class, unit
from actstore.search.engines import LeadingClasses, SearchChoice, wanted_classes
from actstore.split import Split
from predictor.protocol.method import Aggregate, Method
from predictor.protocol.outcome import TOP, Queries

SHARES = (1.0, 0.1, 0.01)
_HELD_BYTES = 1 << 28  # of scores that are kept for the next share of D_large
Embed = Callable[[Tensor], Tensor]  # (…, dim) -> (…, any)


def identity(rows: Tensor) -> Tensor:
    return rows


class ExampleScores:
    """The highest cosine of queries with any of a category's examples; shared by methods that differ in what they know
    of the base alone, which ask about the same draws one after the other.

    Products are float64's, and cosines then float32's, as searches round theirs: equal rows have equal scores, wherever
    they are.
    """

    def __init__(self, embed: Embed = identity) -> None:
        self._embed = embed
        self._asked: tuple[Tensor, int, Tensor] | None = None
        self._best: dict[bytes, Tensor] = {}  # of the queries asked last, by the examples of each category

    def of(self, queries: Tensor, support: Tensor) -> Tensor:
        """(n, dim) and (ways, shots, dim) -> (n, ways). A draw of more examples begins with those of one of fewer, so
        they are met again."""
        units, asked, best = self._units(queries), hashlib.sha256(), None
        for examples in support.unbind(1):
            asked.update(examples.contiguous().numpy().data)
            best = self._joined(asked.digest(), units, examples, best)
        assert best is not None
        return best

    def _joined(self, key: bytes, units: Tensor, examples: Tensor, before: Tensor | None) -> Tensor:
        """The best of those before and one more example of each category (ways, dim)."""
        if key in self._best:
            return self._best[key]
        # the few by the many: the other way round takes half as long again, and so does what follows it
        best = (unit(self._embed(examples).double()) @ units.T).float().T
        if before is not None:
            best = torch.maximum(best, before)
        if (len(self._best) + 1) * best.nbytes <= _HELD_BYTES:
            self._best[key] = best
        return best

    def _units(self, queries: Tensor) -> Tensor:
        """Of length 1, embedded; kept for the next draw, which asks about the same queries."""
        if self._asked is None or self._asked[0] is not queries or self._asked[1] != queries._version:
            self._asked = (queries, queries._version, unit(self._embed(queries).double()))
            self._best = {}
        return self._asked[2]


class NearestNeighbour(Method):
    """A category's score is the highest cosine of the query with any of its examples.

    share: of the rows of each base category, drawn with the seed, at least one. search: how tables find the nearest.
    embed: applied to queries, rows and support alike. embedded: the rows after it, kept where they can be searched;
    None where they cannot be kept. examples: shared with other shares.
    """

    key, name, episode_name = "nn", "NN+Cosine", "Nearest Neighbor"
    aggregates: tuple[Aggregate, ...] = ("max", "mean")
    aggregate: Aggregate | None = "max"
    scores_categories_apart = True

    def __init__(
        self,
        share: float = 1.0,
        seed: int = 0,
        search: SearchChoice = SearchChoice(),  # noqa: B008 - frozen
        embed: Embed = identity,
        embedded: Callable[[], Split | None] | None = None,
        examples: ExampleScores | None = None,
    ) -> None:
        self.share = f"{share:.0%}"
        self._share, self._seed, self._search = share, seed, search
        self._embed, self._embedded, self._examples = embed, embedded, examples or ExampleScores(embed)

    @property
    def _rows(self) -> ClassRows:
        key = (ClassRows, self._share, self._seed)
        return self.base.once(key, lambda: self.base.draw(self._share, self._seed))

    @property
    def share_taken(self) -> str:
        """Of all base rows, where it is more than the share asked for; for a line below the table."""
        taken, every = len(self._rows.rows), len(self.base.draw().rows)
        if f"{taken / every:.0%}" == self.share:
            return ""
        return (f"{self.name}, {self.share}: whole rows of each category are taken, at least one: {taken:,} of "
                f"{every:,}, or {taken / every:.1%}")  # fmt: skip

    def base_scores(self, queries: Tensor) -> Tensor:
        base, asked = self.base, self._embed(queries.to(self._search.place))
        found = best_by_class(base.rows_of_split, self._rows, asked, self._embed)
        return found.cpu()

    def table_base_scores(self, asked: Queries) -> Tensor:
        rows = self._searchable()
        if rows is None:
            return self.base_scores(asked.activations)
        leading = LeadingClasses(rows, self._rows, self._search)
        targets = wanted_classes(asked.base_targets, len(asked.activations))
        return leading.scores(self._embed(asked.activations), targets, TOP)

    def _searchable(self) -> Split | None:
        """Rows that an engine can search: as they are stored, or embedded and kept; None where calibration leaves some
        out, in every task others."""
        if not self.base.is_as_stored:
            return None
        if self._embed is identity:
            return self.base.rows_of_split
        return None if self._embedded is None else self._embedded()

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self._examples.of(queries, support)

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        way, shots = support.shape[1:3]
        examples = unit(self._embed(support.flatten(1, 2)))  # (tasks, way * shots, dim)
        cosines = unit(self._embed(queries)) @ examples.mT  # (tasks, n, way * shots)
        return cosines.view(*cosines.shape[:2], way, shots).amax(dim=3)

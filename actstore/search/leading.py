"""The leading classes of queries: as many of the nearest rows as it takes, by any engine.

Who asks which class is nearest, and which come next, needs no score of all the others. The k nearest rows of a query
name its first classes with their best scores; k grows for those queries that need more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.device import parse_device
from actstore.errors import InvalidInputError
from actstore.search import Engine, open_engine, search
from actstore.search.by_class import ClassRows, best_by_class, require_finite
from actstore.search.gpu import has_gpu
from actstore.search.ranking import Neighbours, rounding
from actstore.search.table import RowTable, SelectedRows
from actstore.spec import SEARCHES

if TYPE_CHECKING:
    from actstore.split import Split

_FIRST, _GROWTH = 8, 4  # rows asked for; a round to the one before
_MOST = 2048  # with more, one look at all rows is no slower
_MOST_OF_FAISS = 512  # which finds 2,048 at a time on a GPU, and is asked for more than it must find


@dataclass(frozen=True)
class SearchChoice:
    """method: one of SEARCHES. device: cpu, cuda, or auto for a GPU where faiss finds one."""

    method: str = "auto"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.method not in SEARCHES:
            raise InvalidInputError(f"a search is one of {', '.join(SEARCHES)}, got {self.method!r}")
        parse_device(self.device)  # one that is absent is refused at once

    @property
    def is_auto(self) -> bool:
        return self.method == "auto"

    @cached_property
    def place(self) -> torch.device:
        """Where products of all rows are made."""
        return parse_device(self.device)

    @property
    def is_on_cpu(self) -> bool:
        """Whether engines search on the CPU, which all but CUDA's do."""
        return self.place.type != "cuda" or (self.device == "auto" and (self.method == "bounded" or not has_gpu()))


class LeadingClasses:
    """Of the chosen rows of a split. Its engines stay with the split, ready for other classes and shares of them."""

    def __init__(self, split: Split, chosen: ClassRows, choice: SearchChoice = SearchChoice()) -> None:  # noqa: B008 - frozen
        self._split, self._chosen, self._method = split, chosen, choice.method
        self._device = "cpu" if choice.is_on_cpu else str(choice.place)
        order = np.argsort(chosen.rows, kind="stable")
        self._rows = chosen.rows[order]
        self._classes = np.repeat(np.arange(len(chosen)), np.diff(chosen.offsets))[order]  # (rows,)
        self._own: Engine | None = None

    def scores(self, queries: Tensor, wanted: Tensor | None = None, count: int = 5) -> Tensor:
        """(n, dim) float32 -> (n, n_class): the highest cosine with a row of each of a query's first classes.

        First are the `count` classes of the highest scores, or fewer where the wanted class (n,) is among those and all
        that score as high as it does are there; -1: none is wanted. Every other class may have minus infinity."""
        require_finite(queries)
        count = min(count, len(self._chosen))
        aims = np.full(len(queries), -1) if wanted is None else wanted.numpy()
        best = np.full((len(queries), len(self._chosen)), -np.inf, np.float32)
        has_direction = (queries != 0).any(1).numpy()
        best[~has_direction] = 0  # a zero vector has cosine 0 with everything
        open_, k = np.flatnonzero(has_direction), _FIRST
        while len(open_) and k <= (_MOST_OF_FAISS if self._is_apart else _MOST):
            k = min(k, len(self._rows))
            scores, places = self._nearest(queries[torch.from_numpy(open_)], k)
            best[open_] = self._by_class(scores, places)
            if k == len(self._rows):
                return torch.from_numpy(best)
            open_ = open_[scores[:, -1] >= _decisive(best[open_], aims[open_], count)]
            k *= _GROWTH
        if len(open_):
            best[open_] = self._by_all_products(queries[torch.from_numpy(open_)], aims[open_], count)
        return torch.from_numpy(best)

    @property
    def _is_apart(self) -> bool:
        """Whether the engine is faiss's, which searches all the rows that it has: it gets the chosen ones alone."""
        return self._method == "faiss" or self._device != "cpu"

    def _nearest(self, queries: Tensor, k: int) -> Neighbours:
        """Scores (n, k) and places (n, k) among the rows."""
        if self._is_apart:
            if self._own is None:
                table = SelectedRows(RowTable(self._split), self._rows)
                self._own = open_engine(table, self._method, device=self._device)
            return self._own.search(queries, k)
        rows = None if len(self._rows) == len(self._split) else self._rows
        scores, found = search(self._split, queries, k, rows=rows, method=self._method)
        return scores, found if rows is None else np.searchsorted(rows, found)

    def _by_class(self, scores: NDArray[np.float32], places: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, k) descending -> (n, n_class), minus infinity where a class has none of them."""
        best = np.full((len(scores), len(self._chosen)), -np.inf, np.float32)
        backwards = slice(None, None, -1)  # of a class that comes again the first, written last, stays
        np.put_along_axis(best, self._classes[places[:, backwards]], scores[:, backwards], 1)
        return best

    def _by_all_products(self, queries: Tensor, aims: NDArray[Any], count: int) -> NDArray[np.float32]:
        """Where the nearest rows are of few classes: every class in float32, and those that lead as searches score."""
        table = RowTable(self._split)
        near = best_by_class(self._split, self._chosen, queries).numpy()
        margin = np.float32(2 * rounding(table.dim))
        leads = near >= (_decisive(near, aims, count) - margin)[:, None]
        best = np.full_like(near, -np.inf)
        for label in np.flatnonzero(leads.any(0)):
            asked = np.flatnonzero(leads[:, label])
            rows = np.sort(self._chosen.rows[self._chosen.offsets[label] : self._chosen.offsets[label + 1]])
            scores, _ = search(self._split, queries[torch.from_numpy(asked)], 1, rows=rows, method="exact")
            best[asked, label] = scores[:, 0]
        return best


def _decisive(best: NDArray[np.float32], aims: NDArray[Any], count: int) -> NDArray[np.float32]:
    """(n,) the score above which all must be known: that of the wanted class, or of the last that leads."""
    # numpy's partition takes ten times as long where most values are equal, as those of classes not met are
    last: NDArray[np.float32] = torch.from_numpy(best).topk(count, dim=1).values[:, -1].numpy()
    aimed = best[np.arange(len(best)), aims]
    return np.maximum(last, np.where(aims >= 0, aimed, -np.inf))


def wanted_classes(targets: Tensor, count: int) -> Tensor:
    """(m,) targets of the first of so many queries -> (count,), -1 for the others."""
    return torch.cat([targets, targets.new_full((count - len(targets),), -1)])

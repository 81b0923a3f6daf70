"""Which engine answers a search: by its method, its device, and the indexes that are built. And the leading classes of
queries, by any engine.

Who asks which class is nearest, and which come next, needs no score of all the others. The k nearest rows of a query
name its first classes with their best scores; k grows for those queries that need more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.device import parse_device
from actstore.errors import ActstoreError, InvalidInputError, OtherVersionError
from actstore.search.bounded import BoundedSearch
from actstore.search.by_class import ClassRows, best_by_class, require_finite
from actstore.search.exact import ExactSearch
from actstore.search.index_files import folder
from actstore.search.ranking import Neighbours, rounding
from actstore.search.table import Rows, RowTable, SelectedRows, parse_metric
from actstore.spec import INDEX_KINDS, SEARCH_METHODS, SEARCHES

if TYPE_CHECKING:
    from actstore.split import Split

_FIRST, _GROWTH = 8, 4  # rows asked for; a round to the one before
_MOST = 2048  # with more, one look at all rows is no slower
_MOST_OF_FAISS = 512  # which finds 2,048 at a time on a GPU, and is asked for more than it must find


class Engine(Protocol):
    def search(self, vectors: Any, k: int = 10, rows: Rows | None = None) -> Neighbours: ...


def search(
    split: Split,
    vectors: Any,
    k: int = 10,
    *,
    rows: Rows | None = None,
    method: str = "auto",
    metric: str = "cosine",
    device: str = "cpu",
) -> Neighbours:
    """The k nearest rows of each of vectors (n, dim), or the nearest of some rows, ascending and distinct.

    Engines stay with the split, ready for the next search."""
    if rows is not None and not len(rows):
        raise InvalidInputError(
            f"no row of split {split.name!r} of {split.store_path} satisfies every filter; leave one out"
        )
    engines: dict[Any, Engine] = vars(split).setdefault("_engines", {})
    key = (method, metric, device)
    if key not in engines:
        engines[key] = open_engine(split, method, metric, device)
    return engines[key].search(vectors, k, rows)


def open_engine(split: Split | RowTable, method: str = "auto", metric: str = "cosine", device: str = "cpu") -> Engine:
    """method: auto (bounded where its index is built and pays, else exact), exact, bounded, faiss (its flat search),
    approximate (whichever index is built) or a kind of index. device: cpu, cuda, cuda:1, … or auto (a GPU where it can
    do this search).

    A table of some rows of a split has no index: there methods auto, exact and faiss are."""
    if method not in SEARCH_METHODS:
        raise InvalidInputError(f"method must be one of {', '.join(SEARCH_METHODS)}, got {method!r}")
    chosen = parse_metric(metric)
    if chosen != "cosine" and method not in ("auto", "exact"):
        raise InvalidInputError(f"method {method} searches by cosine only; for inner products use method exact")
    card = _gpu_number(device, method, metric)
    if card is not None:
        from actstore.search.flat import GpuSearch  # faiss takes time to import, and most searches need none

        return GpuSearch(split, device=card)
    if method == "faiss":
        from actstore.search.flat import FaissSearch

        return FaissSearch(split)
    if isinstance(split, RowTable):
        return ExactSearch(split, chosen)
    if method in ("approximate", *INDEX_KINDS):
        from actstore.search.approximate import ApproximateSearch

        return ApproximateSearch.load(split, _built_kind(split) if method == "approximate" else method)
    if method == "bounded" or (method == "auto" and chosen == "cosine" and (folder(split) / "bounded.json").exists()):
        try:
            return BoundedSearch(split)
        except OtherVersionError:  # `remarks` says so: the same answers take longer
            pass
        except ActstoreError:
            if method == "bounded":
                raise
    return ExactSearch(split, chosen)


def _gpu_number(device: str, method: str, metric: str) -> int | None:
    """The number of the GPU to search on; None: the CPU."""
    if device == "cpu":
        return None
    kind, _, place = device.partition(":")
    if device != "auto" and (kind != "cuda" or not (place.isdecimal() or device == "cuda")):
        raise InvalidInputError(f"searches run on device cpu, cuda, cuda:1 or auto, got {device!r}")
    from actstore.search.flat import require_gpu

    can_search = method in ("auto", "exact", "faiss") and metric == "cosine"
    try:
        require_gpu(int(place or 0))
    except InvalidInputError:
        if device == "auto":
            return None
        raise
    if not can_search and device != "auto":
        raise InvalidInputError("on a GPU only methods exact and faiss by cosine are there; use device cpu")
    return int(place or 0) if can_search else None


def _built_kind(split: Split) -> str:
    built = [kind for kind in INDEX_KINDS if (folder(split) / f"{kind}.json").exists()]
    if len(built) == 1:
        return built[0]
    if built:
        raise InvalidInputError(f"several indexes are built ({', '.join(built)}); name one of them as the method")
    raise InvalidInputError(
        f"split {split.name!r} of {split.store_path} has no approximate index; "
        f"build one with `actstore index {split.store_path} --split {split.name} --kind ivf`"
    )


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
        from actstore.search.flat import has_gpu

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

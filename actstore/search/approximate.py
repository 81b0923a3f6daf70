"""Approximate nearest neighbours by cosine: faiss narrows the rows down, the store's own rows decide.

An index holds the leading coordinates of unit rows (rotation.py) in one of faiss's structures. The rows it proposes
are scored from the store and ranked as every other engine does, so scores are exact; only neighbours may be missed.
"""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.threads import worker_threads
from actstore.errors import DamagedError, InvalidInputError
from actstore.search.kept_files import find, publish
from actstore.search.queries import parse_k, parse_vectors, unit
from actstore.search.ranking import Neighbours, Pairs, rank, thin_out
from actstore.search.table import RowTable
from actstore.spec import INDEX_KINDS, IndexKind

if TYPE_CHECKING:
    from actstore.split import Split


@dataclass(frozen=True)
class IndexSettings:
    """dims: leading coordinates in use. lists: cells of the inverted file (not for hnsw). effort: cells visited by a
    query, or hnsw's efSearch. refine: rows per query that are scored from the store. links: of hnsw's graph.
    recall: share of held-out queries whose nearest row was found, out of `queries`, at this effort.
    """

    kind: IndexKind
    dims: int
    lists: int
    effort: int
    refine: int
    links: int = 32
    recall: float = float("nan")
    queries: int = 0
    held_out: tuple[int, ...] = ()  # rows that came last, after the recall was measured without them


class ApproximateSearch:
    """An index in memory over a split or tensor; `load` reads the one beside a split."""

    def __init__(self, rows: Split | Tensor | Any, index: Any, settings: IndexSettings) -> None:
        self.table = rows if isinstance(rows, RowTable) else RowTable(rows)
        self.index, self.settings = index, settings
        self.order = row_order(len(self.table), settings.held_out)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, split: Split, kind: str) -> ApproximateSearch:
        """Refused where the index belongs to another store or to older content."""
        found = find(split, parse_kind(kind))
        if found is None:
            raise InvalidInputError(
                f"split {split.name!r} of {split.store_path} has no {kind} index; "
                f"build it with `actstore index {split.store_path} --split {split.name} --kind {kind}`"
            )
        path, stored = found
        try:
            settings = IndexSettings(**{**stored, "held_out": tuple(stored["held_out"])})
            return cls(split, faiss.read_index(str(path)), settings)
        except (RuntimeError, TypeError, KeyError) as error:
            reason = str(error).partition("\n")[0]
            raise DamagedError(f"{path} cannot be read ({reason}); build the index again") from error

    def save(self) -> Path:
        """Beside the store of the split."""
        split = self.table.split
        if split is None:
            raise InvalidInputError("an index over a tensor has no store to be saved beside; search a split instead")
        settings = {**asdict(self.settings), "held_out": list(self.settings.held_out)}
        return publish(
            split, self.settings.kind, ".faiss", settings, lambda path: faiss.write_index(self.index, str(path))
        )

    @property
    def nbytes(self) -> int:
        """Of the index as it is written."""
        writer = faiss.VectorIOWriter()
        faiss.write_index(self.index, writer)
        return int(writer.data.size())

    def search(self, vectors: Any, k: int = 10, effort: int | None = None) -> Neighbours:
        """(n, dim) -> scores (n, k) float32 descending, rows (n, k) int64."""
        queries = parse_vectors(vectors, self.table.dim)
        k = parse_k(k, len(self.table))
        self.table.lengths()
        with worker_threads() as workers:
            return self._search(queries, k, effort or self.settings.effort, workers)

    def _search(self, queries: Tensor, k: int, effort: int, workers: int) -> Neighbours:
        directions = unit(queries)
        proposed = self._propose_enough(directions, k, effort, workers)
        owner, place = np.nonzero(proposed >= 0)
        rows = self.order[proposed[owner, place]]
        pairs = thin_out(self.table, directions, Pairs(rows, owner, np.empty(0, np.float32)), k)
        return rank(self.table, queries, pairs, k, "cosine")

    def _propose_enough(self, directions: Tensor, k: int, effort: int, workers: int) -> NDArray[np.int64]:
        """At least k positions for each query: cells may be empty or small, then more of them are visited."""
        count = max(k, self.settings.refine)
        proposed = self.propose(directions, count, effort, workers)
        while (missing := np.flatnonzero((proposed >= 0).sum(1) < k)).size and effort < self.most_effort:
            effort = min(self.most_effort, 2 * effort)
            proposed[missing] = self.propose(directions[missing], count, effort, workers)
        if missing.size:
            raise InvalidInputError(
                f"the {self.settings.kind} index finds fewer than {k} rows for query {missing[0]}; search exactly"
            )
        return proposed

    @property
    def most_effort(self) -> int:
        return max(2048, len(self.table)) if self.settings.kind == "hnsw" else self.settings.lists

    def propose(self, directions: Tensor, count: int, effort: int, workers: int) -> NDArray[np.int64]:
        """(n, dim) unit vectors -> (n, count) positions in the index, -1 where it found fewer."""
        with self._lock:
            set_effort(self.index, effort)
            faiss.omp_set_num_threads(workers)
            found: NDArray[np.int64] = self.index.search(directions.numpy(), min(count, self.index.ntotal))[1]
        return found


def row_order(rows: int, held_out: tuple[int, ...]) -> NDArray[np.int64]:
    """Which row each position of the index holds."""
    last = np.array(held_out, np.int64)
    return np.concatenate([np.setdiff1d(np.arange(rows), last), last])


def parse_kind(kind: str) -> IndexKind:
    if kind not in INDEX_KINDS:
        raise InvalidInputError(f"the kind of an approximate index must be {', '.join(INDEX_KINDS)}, got {kind!r}")
    return kind


def structure(settings: IndexSettings) -> Any:
    """faiss's empty index for the leading coordinates."""
    dims, metric = settings.dims, faiss.METRIC_INNER_PRODUCT
    if settings.kind == "hnsw":
        return faiss.IndexHNSWFlat(dims, settings.links, metric)
    codes = {"ivf": "Flat", "ivf-sq": "SQ8", "pq": f"PQ{dims // 2}x4fs"}[settings.kind]
    return faiss.index_factory(dims, f"IVF{settings.lists},{codes}", metric)


def set_effort(index: Any, effort: int) -> None:
    inner: Any = faiss.downcast_index(index.index)
    if isinstance(inner, faiss.IndexHNSW):
        inner.hnsw.efSearch = effort
    else:
        inner.nprobe = effort

"""Approximate nearest neighbours by cosine: faiss narrows the rows down, the store's own rows decide.

An index holds the leading coordinates of unit rows (levels.py) in one of faiss's structures. The rows it proposes
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

from actstore.compute.tensors import worker_threads
from actstore.errors import DamagedError, InvalidInputError, reason_of
from actstore.search.exact import ExactSearch
from actstore.search.index_files import find_loaded, publish
from actstore.search.ranking import Neighbours, Pairs, join, rank, thin_out
from actstore.search.table import Mask, Rows, RowTable, mask_of, parse_k, parse_vectors, unit
from actstore.spec import INDEX_KINDS, IndexKind

if TYPE_CHECKING:
    from actstore.split import Split

_EXACT_ROWS, _EXACT_SHARE = 10_000, 0.02  # rows that are searched exactly, rather than looked for in an index of all


@dataclass(frozen=True)
class IndexSettings:
    """dims: leading coordinates in use. lists: cells of the inverted file (not for hnsw). effort: cells visited by a
    query, or hnsw's efSearch. refine: rows per query that are scored from the store. links: of hnsw's graph.
    recall: share of held-out queries whose nearest row was found, out of `queries`, at this effort.
    held_out: rows that came last, after the recall was measured without them. extended: of each extension, how many
    rows there were before, and its held-out rows.
    """

    kind: IndexKind
    dims: int
    lists: int
    effort: int
    refine: int
    links: int = 32
    recall: float = float("nan")
    queries: int = 0
    held_out: tuple[int, ...] = ()
    extended: tuple[tuple[int, tuple[int, ...]], ...] = ()


class ApproximateSearch:
    """An index in memory over a split or tensor; `load` reads the one beside a split."""

    def __init__(
        self, rows: Split | Tensor | Any, index: Any, settings: IndexSettings, covered: int | None = None
    ) -> None:
        """covered: how many rows the index is of, the first ones; all by default."""
        self.table = rows if isinstance(rows, RowTable) else RowTable(rows)
        self.index, self.settings = index, settings
        self.covered = len(self.table) if covered is None else covered
        self.order = row_order(self.covered, settings)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, split: Split, kind: str) -> ApproximateSearch:
        """Refused where the index belongs to another store or to older content."""
        found = find_loaded(split, parse_kind(kind), _read_index)
        if found is None:
            raise InvalidInputError(
                f"split {split.name!r} of {split.store_path} has no {kind} index; "
                f"build it with `actstore index {split.store_path} --split {split.name} --kind {kind}`"
            )
        (path, stored, covered), index = found
        try:
            extended = tuple((int(rows), tuple(held)) for rows, held in stored.get("extended", ()))
            settings = IndexSettings(**{**stored, "held_out": tuple(stored["held_out"]), "extended": extended})
            return cls(split, index, settings, covered)
        except (TypeError, KeyError) as error:
            raise _unreadable(path, error) from error

    def save(self) -> Path:
        """Beside the store of the split."""
        split = self.table.split
        if split is None:
            raise InvalidInputError("an index over a tensor has no store to be saved beside; search a split instead")
        extended = [[rows, list(held)] for rows, held in self.settings.extended]
        settings = {**asdict(self.settings), "held_out": list(self.settings.held_out), "extended": extended}
        return publish(
            split, self.settings.kind, ".faiss", settings, lambda path: faiss.write_index(self.index, str(path))
        )

    @property
    def nbytes(self) -> int:
        """Of the index as it is written."""
        writer = faiss.VectorIOWriter()
        faiss.write_index(self.index, writer)
        return int(writer.data.size())

    def search(self, vectors: Any, k: int = 10, rows: Rows | None = None, *, effort: int | None = None) -> Neighbours:
        """(n, dim) -> scores (n, k) float32 descending, rows (n, k) int64. Few rows are searched exactly."""
        queries = parse_vectors(vectors, self.table.dim)
        k = parse_k(k, len(self.table) if rows is None else len(rows))
        indexed = self.covered if rows is None else int(np.searchsorted(rows, self.covered))
        if indexed < k or (rows is not None and indexed < max(_EXACT_ROWS, _EXACT_SHARE * self.covered)):
            return ExactSearch(self.table).search(queries, k, rows)
        self.table.lengths()
        mask = None if rows is None else mask_of(rows, len(self.table))
        with worker_threads() as workers:
            found = self._search(queries, k, effort or self.settings.effort, workers, mask)
        return ExactSearch(self.table).search(queries, k, rows) if found is None else found

    def _search(self, queries: Tensor, k: int, effort: int, workers: int, mask: Mask | None) -> Neighbours | None:
        """None where the index does not find enough of the rows in the mask."""
        directions = unit(queries)
        proposed = self._propose_enough(directions, k, effort, workers, mask)
        if proposed is None:
            return None
        owner, place = np.nonzero(proposed >= 0)
        pairs = Pairs(self.order[proposed[owner, place]], owner, np.zeros(len(owner), np.float32))
        if self.covered < len(self.table):  # appended since
            found = ExactSearch(self.table).candidates(queries, k, workers, mask, self.covered)
            pairs = join([pairs, found])
        return rank(self.table, queries, thin_out(self.table, directions, pairs, k, workers), k, "cosine")

    def _propose_enough(
        self, directions: Tensor, k: int, effort: int, workers: int, mask: Mask | None
    ) -> NDArray[np.int64] | None:
        """At least k positions for each query: cells may be empty or small, then more of them are visited."""
        count = max(k, self.settings.refine)
        proposed = self.propose(directions, count, effort, workers, mask)
        while (missing := np.flatnonzero((proposed >= 0).sum(1) < k)).size and effort < self.most_effort:
            effort = min(self.most_effort, 2 * effort)
            proposed[missing] = self.propose(directions[missing], count, effort, workers, mask)
        if missing.size and mask is not None:
            return None
        if missing.size:
            raise InvalidInputError(
                f"the {self.settings.kind} index finds fewer than {k} rows for query {missing[0]}; search exactly"
            )
        return proposed

    @property
    def most_effort(self) -> int:
        return max(2048, self.covered) if self.settings.kind == "hnsw" else self.settings.lists

    def propose(
        self, directions: Tensor, count: int, effort: int, workers: int, mask: Mask | None = None
    ) -> NDArray[np.int64]:
        """(n, dim) unit vectors -> (n, count) positions in the index, -1 where it found fewer; mask: of the rows."""
        # faiss keeps no reference to the bits: they must live as long as the call
        bits = None if mask is None else np.packbits(mask[self.order], bitorder="little")
        parameters = search_parameters(self.settings.kind, effort, bits)
        with self._lock:
            faiss.omp_set_num_threads(workers)
            count = min(count, self.index.ntotal)
            found: NDArray[np.int64] = self.index.search(directions.numpy(), count, params=parameters)[1]
        return found


def _read_index(path: Path) -> Any:
    try:
        return faiss.read_index(str(path))
    except RuntimeError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> DamagedError:
    return DamagedError(f"{path} cannot be read ({reason_of(error)}); build the index again")


def row_order(covered: int, settings: IndexSettings) -> NDArray[np.int64]:
    """Which row each position of the index holds: of every building of it the held-out rows come last."""
    edges = [0, *(rows for rows, _ in settings.extended), covered]
    held = [settings.held_out, *(rows for _, rows in settings.extended)]
    parts = []
    for begin, end, last in zip(edges, edges[1:], held, strict=False):
        late = np.array(last, np.int64)
        parts += [np.setdiff1d(np.arange(begin, end), late), late]
    return np.concatenate(parts)


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


def search_parameters(kind: IndexKind, effort: int, bits: NDArray[np.uint8] | None) -> Any:
    """bits: one for every position that may be found, eight to a byte."""
    library: Any = faiss  # whose Python layer takes arrays and keywords that its stubs do not know
    limit = {} if bits is None else {"sel": library.IDSelectorBitmap(bits)}
    if kind == "hnsw":
        inner = library.SearchParametersHNSW(efSearch=effort, **limit)
    else:
        inner = library.SearchParametersIVF(nprobe=effort, **limit)
    return library.SearchParametersPreTransform(index_params=inner)

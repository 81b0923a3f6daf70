"""Exact nearest neighbours by cosine below the cost of all products, where leading coordinates tell rows apart.

Every row gets an upper bound of its score from 8-bit codes of leading coordinates (levels.py). The rows that seem
nearest in a sample give each query a threshold; rows whose bound stays below it cannot be among the k nearest, and the
rest is bounded by more codes and then scored in full. Margins cover all rounding. Rows that were appended since are
searched exactly.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.threads import worker_threads
from actstore.search.bounded_pass import Pass
from actstore.search.compiled import Kernels, kernels
from actstore.search.exact import ExactSearch
from actstore.search.level_building import Progress, build_levels, load_levels
from actstore.search.levels import Levels
from actstore.search.queries import parse_k, parse_vectors
from actstore.search.query_codes import QueryCodes
from actstore.search.ranking import Neighbours, Pairs, join, rank, stack
from actstore.search.selection import Mask, Rows, are_few, mask_of, parse_rows
from actstore.search.table import RowTable
from actstore.streams.sampling import Stream, generator

if TYPE_CHECKING:
    from actstore.split import Split

_QUERIES = 128  # in one pass
_FEWEST = 1024  # rows that are worth a pass


class BoundedSearch:
    """rows: a split with a bounded index beside it, or a tensor (the index is then built in memory).

    Memory: the levels (`nbytes`, mapped where they are on disk), and what their bounds leave.
    """

    def __init__(self, rows: Split | Tensor | Any, levels: Levels | None = None) -> None:
        self.table = rows if isinstance(rows, RowTable) else RowTable(rows)
        if levels is None:
            levels = build_levels(self.table) if self.table.split is None else load_levels(self.table.split)
        self.levels = levels
        self.exact = ExactSearch(self.table)
        self.fell_back = 0  # queries that were searched by all products, since their bounds left too many rows
        self._orders: dict[int, NDArray[np.int64]] = {}
        self._last: tuple[Kernels | None, Tensor, QueryCodes] | None = None
        self._lock = threading.Lock()

    @classmethod
    def build(cls, rows: Split | Tensor | Any, progress: Progress | None = None, again: bool = False) -> BoundedSearch:
        """Make the index, or extend the one of the first rows, and keep it beside the store where rows is a split.
        `progress` gets rows as they are done."""
        table = RowTable(rows)
        return cls(table, build_levels(table, progress, again))

    @property
    def prunes(self) -> bool:
        """Whether the bound pays on this data; else every search is the exact one."""
        return bool(self.levels.widths)

    @property
    def covered(self) -> int:
        """Rows in the index, the first ones; those that were appended since are searched exactly."""
        return len(self.levels.first)

    @property
    def nbytes(self) -> int:
        return self.levels.nbytes

    def search(self, vectors: Any, k: int = 10, rows: Rows | None = None) -> Neighbours:
        """As `ExactSearch.search` by cosine, with the same answers."""
        queries = parse_vectors(vectors, self.table.dim)
        rows = None if rows is None else parse_rows(rows, len(self.table))
        k = parse_k(k, len(self.table) if rows is None else len(rows))
        indexed = self.covered if rows is None else int(np.searchsorted(rows, self.covered))
        if not self.prunes or indexed < max(_FEWEST, 128 * k):
            return self.exact.search(queries, k, rows)
        self.table.lengths()
        with worker_threads() as workers:
            batches = [queries[start : start + _QUERIES] for start in range(0, len(queries), _QUERIES)]
            return stack([self._search(batch, k, workers, rows, indexed) for batch in batches], k)

    def _search(self, queries: Tensor, k: int, workers: int, rows: Rows | None, indexed: int) -> Neighbours:
        few = None if rows is None or not are_few(rows, self.table) else rows[:indexed]
        mask = None if rows is None or few is not None else mask_of(rows, len(self.table))
        found = Pass(self, queries, k, workers, few, mask).run()
        if found is None:
            with self._lock:
                self.fell_back += len(queries)
            return self.exact.search(queries, k, rows)
        if self.covered < len(self.table):
            found = join([found, self._appended(queries, k, workers, rows, mask)])
        return rank(self.table, queries, found, k, "cosine")

    def _appended(self, queries: Tensor, k: int, workers: int, rows: Rows | None, mask: Mask | None) -> Pairs:
        """Candidates among the rows that the index does not cover; each query may have fewer than k."""
        if rows is not None and mask is None:
            mask = mask_of(rows, len(self.table))
        return self.exact.candidates(queries, k, workers, mask, self.covered)

    def query_codes(self, units: Tensor, workers: int) -> QueryCodes:
        """Of unit queries (n, dim); those of the last ones are kept, since a batch is often searched for in one part of
        the rows after another, and a rotation costs as much as a search of some thousand rows."""
        last, loops = self._last, kernels()
        if last is None or last[0] is not loops or not torch.equal(last[1], units):  # each processor has its own codes
            self._last = last = loops, units, QueryCodes(units, self.levels, workers)
        return last[2]

    def block_order(self, parts: int) -> NDArray[np.int64]:
        """Blocks in an order that mixes a store that is sorted by class: thresholds rise sooner."""
        if parts not in self._orders:
            self._orders[parts] = generator(0, 1, Stream.BLOCK_ORDER).permutation(parts)
        return self._orders[parts]

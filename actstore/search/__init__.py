"""Nearest neighbours among the rows of a split or tensor; every exact engine gives the same answer.

ExactSearch      all products, on the CPU
BoundedSearch    all products avoided where leading coordinates suffice (bounded.py); exact
ApproximateSearch, build_index   faiss (approximate.py, indexing.py)
FaissSearch, GpuSearch   faiss, all products, on the CPU and on a GPU (flat.py); exact
join_rows        the nearest rows of every row, all at once (self_join.py); exact
Each engine has `search(vectors, k, rows) -> scores (n, k) float32, rows (n, k) int64`; rows limits it to some. Rows
that were appended since an index was built are searched exactly beside it. `open_engine` chooses.

Imports the store and what stands above it. faiss lives here. What others may use is in `__all__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily
from actstore.spec import INDEX_KINDS, SEARCH_METHODS, SEARCHES

if TYPE_CHECKING:
    from actstore.search.bounded import BoundedSearch
    from actstore.search.engines import Engine, open_engine, search
    from actstore.search.exact import ExactSearch
    from actstore.search.index_files import remarks
    from actstore.search.indexing import index_split
    from actstore.search.ranking import Neighbours
    from actstore.search.self_join import Joined, join_rows
    from actstore.search.table import RowTable

__all__ = [
    "INDEX_KINDS", "SEARCHES", "SEARCH_METHODS", "BoundedSearch", "Engine", "ExactSearch", "Joined", "Neighbours",
    "RowTable", "index_split", "join_rows", "open_engine", "remarks", "search",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__)

"""What other analyses ask of a store: rows in the form that their tools expect, and how alike representations are.

alignment.py     a split by its path; which rows of several splits are of the same image; `actstore.fingerprint`
similarity.py    CKA, Procrustes, distances of all pairs, mutual nearest neighbours; their values and intervals
comparison.py    all of it for any number of splits: `actstore.compare`
neighbours.py    the nearest rows of every row, exact and resumable, as a graph for other tools: `actstore.knn`
xarray_backend.py   a split for `xarray.open_dataset(…, engine="actstore")`

Imports the store and search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from actstore.analysis.alignment import open_representation, store_and_split
    from actstore.analysis.comparison import Comparison, compare
    from actstore.analysis.similarity import MEASURES

__all__ = ["MEASURES", "Comparison", "compare", "open_representation", "store_and_split"]

# Loaded on first use: commands that take STORE/SPLIT need `alignment` alone.
__getattr__, __dir__ = lazily(__name__)

"""What other analyses ask of a store: rows in the form that their tools expect, and how alike representations are.

alignment.py     a split by its path; which rows of several splits are of the same image; `actstore.fingerprint`
similarity.py    second moments in one pass; CKA, Procrustes, RDMs, mutual nearest neighbours: plain arithmetic
measuring.py     their values and intervals by bootstrap
comparison.py    all of it for any number of splits: `actstore.compare`
neighbours.py    the nearest rows of every row, exact, block by block, resumable
graph.py         them as a graph that other tools read: `actstore.knn`
adapters.py      a split as an Arrow table, and so for pandas, polars, DuckDB and HuggingFace datasets; for rsatoolbox,
                 Brain-Score, AnnData and SAELens
xarray_backend.py   a split for `xarray.open_dataset(…, engine="actstore")`

Imports the store and search.
"""

from __future__ import annotations

from actstore.analysis.alignment import open_representation
from actstore.analysis.comparison import Comparison, compare
from actstore.analysis.measuring import MEASURES

__all__ = ["MEASURES", "Comparison", "compare", "open_representation"]

"""What other analyses ask of a store: rows in the form that their tools expect, and how alike representations are.

alignment.py     which rows of several splits are of the same image, by id
covariances.py   second moments between representations, in one pass
similarity.py    CKA, Procrustes, RDMs, mutual nearest neighbours: plain arithmetic
measuring.py     their values and intervals by bootstrap
comparison.py    all of it for any number of splits: `actstore.compare`; opening.py finds a split by its path
neighbours.py    the nearest rows of every row, exact, block by block, resumable
graph.py         them as a graph that other tools read: `actstore.knn`
fingerprints.py  a key for caches of activations: `actstore.fingerprint`
arrow.py         a split as an Arrow table, and so for pandas, polars, DuckDB and HuggingFace datasets
xarray_backend.py   a split for `xarray.open_dataset(…, engine="actstore")`
adapters.py      a split for rsatoolbox, Brain-Score, AnnData and SAELens; facts.py: what is known of rows

Imports the store and search.
"""

from __future__ import annotations

from actstore.analysis.comparison import Comparison, compare
from actstore.analysis.measuring import MEASURES

__all__ = ["MEASURES", "Comparison", "compare"]

"""What other analyses ask of a store: how alike two representations of the same rows are.

alignment.py     which rows of several splits are of the same image, by id
covariances.py   second moments between representations, in one pass
similarity.py    CKA, Procrustes, RDMs, mutual nearest neighbours: plain arithmetic
measuring.py     their values and intervals by bootstrap
comparison.py    all of it for any number of splits: `actstore.compare`; opening.py finds a split by its path
arrow.py         texts of a store as Arrow arrays

Imports the store and search.
"""

from __future__ import annotations

from actstore.analysis.comparison import Comparison, compare
from actstore.analysis.measuring import MEASURES

__all__ = ["MEASURES", "Comparison", "compare"]

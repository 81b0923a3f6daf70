"""Count, mean and variance of every class in one pass, kept in the store under the hash of its content.

Imports `streams` and what stands above it. dask lives here. What others may use is in `__all__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from actstore.statistics.class_statistics import has_statistics

__all__ = ["has_statistics"]

__getattr__, __dir__ = lazily(__name__, class_statistics="has_statistics")

"""Work on several processes or machines: a dask.distributed cluster; signals that wait.

Imports nothing below the store itself. What others may use is in `__all__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

if TYPE_CHECKING:
    from actstore.parallel.cluster import Cluster, connect

__all__ = ["Cluster", "connect"]

__getattr__, __dir__ = lazily(
    __name__,
    cluster="Cluster connect",
)

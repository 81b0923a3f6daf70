"""actstore: millions of image activations in plain Zarr, at the speed of a memory map.

import actstore
train = actstore.open("imagenet.zarr")["train"]
train.take([17, 3, 99])        # (3, dim)
train.of_class("n01440764")    # (n, dim)
train.means()                  # (classes, dim)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from actstore.analysis.comparison import compare
    from actstore.analysis.fingerprints import fingerprint
    from actstore.analysis.graph import knn
    from actstore.creation import create
    from actstore.split import Split
    from actstore.store import ActivationStore, open
    from actstore.streams.class_batches import ClassBatches
    from actstore.tables.arrays import from_arrays

# Loaded on first use: `actstore --help` must not wait for zarr.
_HOMES = {
    "open": "actstore.store",
    "ActivationStore": "actstore.store",
    "Split": "actstore.split",
    "ClassBatches": "actstore.streams.class_batches",
    "compare": "actstore.analysis.comparison",
    "create": "actstore.creation",
    "knn": "actstore.analysis.graph",
    "fingerprint": "actstore.analysis.fingerprints",
    "from_arrays": "actstore.tables.arrays",
}

__all__ = [
    "ActivationStore",
    "ClassBatches",
    "Split",
    "__version__",
    "compare",
    "create",
    "fingerprint",
    "from_arrays",
    "knn",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'actstore' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

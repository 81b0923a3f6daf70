"""actstore: millions of image activations in plain Zarr, at the speed of a memory map.

Examples:
    >>> import actstore
    >>> train = actstore.open("animals.zarr")["train"]
    >>> train.take([17, 3, 29]).shape  # rows in any order
    (3, 8)
    >>> train.of_class("bee").shape
    (10, 8)
    >>> train.means().shape  # the mean of every class, computed once and kept
    (4, 8)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

__version__ = "0.2.0"

if TYPE_CHECKING:
    from actstore.analysis.alignment import fingerprint
    from actstore.analysis.comparison import compare
    from actstore.analysis.neighbours import knn
    from actstore.errors import ActstoreError, DamagedError, InvalidInputError
    from actstore.extraction.from_images import build
    from actstore.images.glyphs import write_glyphs
    from actstore.maps.making import map
    from actstore.split import Split
    from actstore.store import ActivationStore, create, open
    from actstore.streams.class_batches import ClassBatches
    from actstore.tables.importing import from_arrays, synthesize
    from actstore.upkeep.copies import rechunk, select
    from actstore.upkeep.repair import verify

__all__ = [
    "ActivationStore",
    "ActstoreError",
    "ClassBatches",
    "DamagedError",
    "InvalidInputError",
    "Split",
    "__version__",
    "build",
    "compare",
    "create",
    "fingerprint",
    "from_arrays",
    "knn",
    "map",
    "open",
    "rechunk",
    "select",
    "synthesize",
    "verify",
    "write_glyphs",
]

# Loaded on first use: `actstore --help` must not wait for zarr.
__getattr__, __dir__ = lazily(__name__)

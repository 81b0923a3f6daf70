"""actstore: millions of image activations in plain Zarr, at the speed of a memory map.

import actstore
train = actstore.open("imagenet.zarr")["train"]
train.take([17, 3, 99])        # (3, dim)
train.of_class("n01440764")    # (n, dim)
train.means()                  # (classes, dim)
store = actstore.build("photos/")      # images through a network; chooses one, resumes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actstore.lazy import lazily

__version__ = "0.2.0"

if TYPE_CHECKING:
    from actstore.analysis.alignment import fingerprint
    from actstore.analysis.comparison import compare
    from actstore.analysis.graph import knn
    from actstore.errors import ActstoreError, DamagedError, InvalidInputError
    from actstore.extraction.from_images import build
    from actstore.images.glyphs import write_glyphs
    from actstore.split import Split
    from actstore.store import ActivationStore, create, open
    from actstore.streams.class_batches import ClassBatches
    from actstore.tables.arrays import from_arrays
    from actstore.tables.synthetic import synthesize
    from actstore.upkeep.rechunk import rechunk
    from actstore.upkeep.repair import verify
    from actstore.upkeep.select import select

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
    "open",
    "rechunk",
    "select",
    "synthesize",
    "verify",
    "write_glyphs",
]

# Loaded on first use: `actstore --help` must not wait for zarr.
__getattr__, __dir__ = lazily(
    __name__,
    analysis__comparison="compare",
    analysis__alignment="fingerprint",
    analysis__graph="knn",
    errors="ActstoreError DamagedError InvalidInputError",
    extraction__from_images="build",
    images__glyphs="write_glyphs",
    split="Split",
    store="ActivationStore create open",
    streams__class_batches="ClassBatches",
    tables__arrays="from_arrays",
    tables__synthetic="synthesize",
    upkeep__rechunk="rechunk",
    upkeep__repair="verify",
    upkeep__select="select",
)

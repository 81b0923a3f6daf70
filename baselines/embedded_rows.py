"""The rows of a split after a learned map, kept beside its store: embedded once, then searched like any others.

A store of its own in STORE.search/SPLIT, in float32 as the map computes them, under a name made of the rows' content
and the map's weights. Interrupted, the next call goes on with it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property

import actstore
from actstore.compute.tensors import borrow
from actstore.errors import IncompleteError, MissingSplitError, StorageError
from actstore.search import BoundedSearch
from actstore.search.index_files import folder
from actstore.search.leading import SearchChoice
from actstore.split import Split
from baselines.triplet import Embedding

_BLOCK = 8192
Say = Callable[[str], None]


class EmbeddedRows:
    """say: told what takes its time. search: whether an index of their own is made with them: where it is asked for,
    or where the rows that they were made of have one."""

    def __init__(self, train: Split, embedding: Embedding, search: SearchChoice, say: Say) -> None:
        self._train, self._embedding, self._search, self._say = train, embedding, search, say
        weights = hashlib.sha256(embedding.change.detach().contiguous().numpy().data)
        self._content = hashlib.sha256(train.content.encode()).hexdigest()[:12]
        self.path = folder(train) / f"embedded-{self._content}-{weights.hexdigest()[:12]}.zarr"

    def __call__(self) -> Split | None:
        """None where nothing can be written beside the store."""
        return self._split

    @cached_property
    def _split(self) -> Split | None:
        try:
            rows = self._open()
            if self._wants_index and not (folder(rows) / "bounded.json").exists():
                self._say(f"making a bounded index of the embedded rows in {self.path}, once")
                BoundedSearch.build(rows)
        except (StorageError, OSError) as error:
            self._say(f"embedded rows are not kept, so they are embedded and multiplied anew: {error}")
            return None
        return rows

    @property
    def _wants_index(self) -> bool:
        has_index = (folder(self._train) / "bounded.json").exists()
        return self._search.is_on_cpu and (self._search.method == "bounded" or (self._search.is_auto and has_index))

    def _open(self) -> Split:
        train = self._train
        if (self.path / "zarr.json").exists():
            store = actstore.open(self.path)
            with suppress(IncompleteError, MissingSplitError):  # an interrupted run's, which goes on below
                return store[train.name]
        else:
            for old in self.path.parent.glob("embedded-*.zarr*"):  # of rows that are no longer these
                if not old.name.startswith(f"embedded-{self._content}-"):
                    shutil.rmtree(old, ignore_errors=True)
            store = actstore.create(self.path, classes=train.classes, dim=train.dim, dtype="f4", rows=len(train))
        self._say(f"embedding {len(train):,} rows into {self.path}, {4 * len(train) * train.dim / 1e9:.1f} GB, once")
        with store.writer(train.name, source={"kind": "embedded", "rows": train.content}) as writer:
            labels = train.labels
            for start in range(writer.position, len(train), _BLOCK):
                stop = min(len(train), start + _BLOCK)
                rows = borrow(train.rows.read(start, stop)).float()
                writer.append(self._embedding(rows).numpy(), labels[start:stop])
        return actstore.open(self.path)[train.name]

"""The stages that tests.bench.scale measures, each in a process of its own: `… STAGE STORE ROWS DIM CLASSES`.

A stage prints what it took as JSON, {name: [value, unit]}; start-up is not part of its seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import actstore
from actstore.compute.process import seconds
from actstore.layout.class_index import ClassIndex
from actstore.split import Split
from actstore.streams.sampling import draw_support, generator, plan_batch
from actstore.tables.filling import fill_split, open_or_create
from actstore.tables.row_source import Table, block_rows
from tests.bench.watch import forget

BATCH, QUERIES = 900, 32
PLANNED_CLASSES = 1000  # of the plan whose cost must not depend on the rows
Figures = dict[str, tuple[float, str]]


@dataclass(frozen=True)
class Setting:
    store: Path
    rows: int
    dim: int
    classes: int

    @property
    def base(self) -> Path:
        """Generated rows to make many from."""
        return self.store.parent / f"base-{self.dim}.npy"

    @property
    def names(self) -> list[str]:
        return [f"class{label:05d}" for label in range(self.classes)]

    def split(self) -> Split:
        return actstore.open(self.store)["train"]


class Recombined:
    """Distinct rows at the speed of a copy: half of one generated row beside half of another.

    Class structure across the halves is lost, so this says nothing about accuracy, and little about pruning.
    """

    def __init__(self, base: Path, rows: int) -> None:
        self._base = np.load(base, mmap_mode="r")  # mapped, so that it is no memory of the stage's own
        self.shape = (rows, self._base.shape[1])
        self.dtype = self._base.dtype
        self.seconds = 0.0

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        count, dim = self._base.shape
        step, half = block_rows(dim, self.dtype), dim // 2
        buffer = np.empty((step, dim), self.dtype)
        for first in range(start, stop, step):
            begin = time.perf_counter()
            block = buffer[: stop - first]
            # a turn over the base pairs every row with another one
            _copy_around(block[:, :half], self._base[:, :half], first % count)
            _copy_around(block[:, half:], self._base[:, half:], (first + first // count * 7) % count)
            self.seconds += time.perf_counter() - begin
            yield block


def _copy_around(out: NDArray[Any], values: NDArray[Any], first: int) -> None:
    """out = values[first:], and on from the beginning where they end."""
    split = min(len(out), len(values) - first)
    out[:split] = values[first : first + split]
    out[split:] = values[: len(out) - split]


def import_rows(setting: Setting) -> Figures:
    source = Recombined(setting.base, setting.rows)
    labels = generator(0, 0).permutation(np.arange(setting.rows) * setting.classes // setting.rows)
    table = Table(source, labels.astype(np.int32))
    store = open_or_create(setting.store, {"train": table}, setting.names)
    taken = seconds(lambda: fill_split(store, "train", table, {"kind": "recombined"}))
    return {"import": (taken, "s"), "import: of it, drawing rows": (source.seconds, "s")}


def class_index(setting: Setting) -> Figures:
    """Built from shuffled and from sorted labels; batches and support planned from it."""
    found: Figures = {}
    shuffled = setting.split().labels
    names = setting.names
    for order, labels in (("shuffled", shuffled), ("sorted", np.sort(shuffled))):
        index = ClassIndex(names, labels)
        found[f"class index, {order}"] = (seconds(lambda index=index: index.rows(0)), "s")  # type: ignore[misc]
        held = index.offsets.nbytes + (0 if index.order is None else index.order.nbytes)
        found[f"class index, {order}: size"] = (held / 1e6, "MB")
    return found


def plan(setting: Setting) -> Figures:
    """Batches and support of 1,000 classes, however many rows there are."""
    classes = min(PLANNED_CLASSES, setting.rows)
    labels = generator(0, 0).permutation(np.arange(setting.rows) * classes // setting.rows).astype(np.int32)
    index, chosen = ClassIndex(setting.names[:1] * classes, labels), np.arange(classes)
    plan_batch(index, chosen, 0, 0, 0.9)
    batches = [seconds(lambda step=step: plan_batch(index, chosen, 0, step, 0.9)) for step in range(300)]  # type: ignore[misc]
    support = [seconds(lambda draw=draw: draw_support(index, chosen[:100], 1, 0, draw)) for draw in range(5)]  # type: ignore[misc]
    return {
        f"plan a batch of {PLANNED_CLASSES:,} classes": (float(np.median(batches)) * 1e6, "us"),
        "draw 1 shot of 100 of them": (float(np.median(support)) * 1e3, "ms"),
    }


def means(setting: Setting) -> Figures:
    split = setting.split()
    return {"means": (seconds(split.statistics), "s")}


def verify(setting: Setting) -> Figures:
    from actstore.upkeep.verify import verify_store

    store = actstore.open(setting.store)
    begin = time.perf_counter()
    faults = verify_store(store)
    taken = time.perf_counter() - begin
    if faults:
        raise RuntimeError(str(faults[0]))
    return {"verify": (taken, "s")}


def take(setting: Setting) -> Figures:
    """Random rows from the disk, then the same rows again."""
    cold, warm, read = [], [], []
    for turn in range(5):
        forget(setting.store / "train" / "activations" / "c")
        split = setting.split()
        split.take([0])  # opens and maps
        rows = generator(0, turn).integers(0, setting.rows, BATCH)
        before = _bytes_read()
        cold.append(seconds(lambda split=split, rows=rows: split.take(rows)))  # type: ignore[misc]
        read.append(_bytes_read() - before)
        warm.append(np.median([seconds(lambda split=split, rows=rows: split.take(rows)) for _ in range(20)]))  # type: ignore[misc]
        del split
    return {
        f"take {BATCH} rows from the disk": (float(np.median(cold)) * 1e3, "ms"),
        f"take {BATCH} rows from the disk: read": (float(np.median(read)) / 1e6, "MB"),
        f"take {BATCH} rows again": (float(np.median(warm)) * 1e3, "ms"),
    }


def _bytes_read() -> int:
    """From the disk, by this process."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def open_split(setting: Setting) -> Figures:
    """A first row from a store that was not open: metadata, and a map per chunk."""
    return {"open, first row": (seconds(lambda: setting.split().take([0])) * 1e3, "ms")}


def query(setting: Setting) -> Figures:
    """From a store that was not open: labels are read, and looked through."""
    name = setting.names[-1]
    asked = seconds(lambda: setting.split().query(classes=[name]))
    split = setting.split()
    first = seconds(lambda: split.of_class(name))
    return {
        "query by class": (asked * 1e3, "ms"),
        "rows of a class, the first": (first * 1e3, "ms"),
        "rows of a class, another": (seconds(lambda: split.of_class(setting.names[0])) * 1e3, "ms"),
    }


def training_batch(setting: Setting) -> Figures:
    """One step of 1,000 classes, or of all that there are; rows are read from the store."""
    from actstore.streams.class_batches import ClassBatches

    chosen = setting.names[:PLANNED_CLASSES]
    begin = time.perf_counter()
    batches = ClassBatches(setting.split(), classes=chosen)
    batches.batch(0)
    first = time.perf_counter() - begin
    steps = [seconds(lambda step=step: batches.batch(step)) for step in range(1, 8)]  # type: ignore[misc]
    return {
        "training stream, first batch": (first, "s"),
        f"training stream, batch of {PLANNED_CLASSES:,} classes": (float(np.median(steps)) * 1e3, "ms"),
    }


def _queries(setting: Setting, split: Split) -> NDArray[np.float32]:
    chosen = generator(0, 1).integers(0, setting.rows, QUERIES)
    values: NDArray[np.float32] = split.take(chosen).astype(np.float32)
    return values + generator(0, 2).random(values.shape, np.float32)


def exact(setting: Setting) -> Figures:
    from actstore.search.exact import ExactSearch

    split = setting.split()
    engine, vectors = ExactSearch(split), _queries(setting, split)
    norms = seconds(engine.table.lengths)
    return {
        "search: norms of all rows, once": (norms, "s"),
        f"search exactly, {QUERIES} queries": (seconds(lambda: engine.search(vectors, 10)), "s"),
    }


def bounded(setting: Setting) -> Figures:
    from actstore.search.bounded import BoundedSearch

    split = setting.split()
    begin = time.perf_counter()
    engine = BoundedSearch.build(split)
    built, vectors = time.perf_counter() - begin, _queries(setting, split)
    engine.search(vectors, 10)
    return {
        "bounded index": (built, "s"),
        "bounded index: size": (engine.nbytes / 1e6, "MB"),
        f"bounded search, {QUERIES} queries": (seconds(lambda: engine.search(vectors, 10)), "s"),
    }


STAGES: dict[str, Callable[[Setting], Figures]] = {
    "import": import_rows, "open": open_split, "class index": class_index, "plan": plan, "means": means,
    "verify": verify, "take": take, "query": query, "stream": training_batch, "exact search": exact,
    "bounded search": bounded,
}  # fmt: skip


if __name__ == "__main__":
    stage, store, rows, dim, classes = sys.argv[1:]
    print(json.dumps(STAGES[stage](Setting(Path(store), int(rows), int(dim), int(classes)))))

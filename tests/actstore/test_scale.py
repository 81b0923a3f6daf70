"""Ten million rows and 21,000 classes: what memory may grow with, and what sampling may touch."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actstore import ActivationStore
from actstore.layout import class_index as classes
from actstore.layout.class_index import ClassIndex
from actstore.layout.columns import RowNumbers
from actstore.reading.query import glob_rows
from actstore.streams.sampling import draw_support, plan_batch

ROWS, FEW, DIM, CLASSES = 10_000_000, 1_000_000, 8, 21_000
ROOMY = 320 << 20  # bytes: 32 a row, twice what such a short row has itself; at 2048 dimensions it has 4,096

STAGES = f"""
import os, resource, sys
from pathlib import Path
import dask, numpy as np, torch, zarr
import actstore
from actstore.tables.filling import fill_split, open_or_create
from actstore.streams.sampling import plan_batch
from actstore.tables.row_source import Table
from actstore.streams.class_batches import ClassBatches
from actstore.upkeep.verify import verify_store
import actstore.statistics

ROWS, FEW, DIM, CLASSES = {ROWS}, {FEW}, {DIM}, {CLASSES}

class Repeated:
    dtype = np.dtype(np.float16)
    base = np.random.default_rng(0).random((1 << 16, DIM), np.float32).astype(np.float16)
    def __init__(self, rows):
        self.shape = (rows, DIM)
    def blocks(self, start, stop):
        for first in range(start, stop, len(self.base)):
            yield self.base[: stop - first]

path = Path(sys.argv[1])
torch.set_num_threads(1)
os.cpu_count = lambda: 2  # as many threads, and so as much memory, on every machine
labels = (np.arange(ROWS) * 7919 % CLASSES).astype(np.int32)  # every class, in an order that is not sorted
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + {ROOMY}, used + {ROOMY}))

tables = {{"train": Table(Repeated(ROWS), labels), "few": Table(Repeated(FEW), labels[:FEW])}}
store = open_or_create(path, tables, [str(label) for label in range(CLASSES)])
for name, table in tables.items():
    fill_split(store, name, table, {{"kind": "test"}})
del table, tables, labels
assert not verify_store(store)

train = store["train"]
rows = train.query(classes=["77"])
assert len(rows) == len(train.of_class(77)) and (train.labels[rows] == 77).all()
plan = plan_batch(train.class_index, np.arange(CLASSES), 0, 0, 0.9)
assert (train.labels[plan.query_rows] == np.arange(CLASSES)).all()
assert train.ids[ROWS - 1] == str(ROWS - 1)
activations, found = next(iter(train.to_dataset(64, seed=0)))
assert activations.shape == (64, DIM)

few = store["few"]  # means of short rows take a microsecond each
assert np.allclose(few.means()[77], few.of_class(77).astype(float).mean(0), rtol=6e-5)
batch = ClassBatches(few, classes=range(0, CLASSES, 21)).batch(3)
assert np.array_equal(batch.queries.numpy(), few.take(batch.plan.query_rows).astype(np.float32))
print("done")
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's limit on data")
def test_ten_million_rows_of_21000_classes_are_handled_in_bounded_memory(tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", STAGES, str(tmp_path / "x.zarr")], capture_output=True, text=True, check=False
    )
    assert child.stdout == "done\n", child.stderr


def test_the_class_index_of_shuffled_rows_takes_four_bytes_each_and_little_more_to_make() -> None:
    labels = np.random.default_rng(0).integers(-1, CLASSES, 2_000_000).astype(np.int32)
    names = [str(label) for label in range(CLASSES)]
    tracemalloc.start()
    try:
        index = ClassIndex(names, labels)
        assert index.order is not None
        assert index.order.nbytes == 4 * len(labels)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(labels) + (24 << 20)
    finally:
        tracemalloc.stop()


def test_sorted_labels_need_no_row_list() -> None:
    index = ClassIndex(["a", "b", "c"], np.repeat([-1, 0, 2], [5, 1_000_000, 7]))
    assert index.order is None
    assert index.offsets.tolist() == [5, 1_000_005, 1_000_005, 1_000_012]


@given(labels=st.lists(st.integers(-1, 6), max_size=60), block=st.integers(1, 70), many=st.booleans())
def test_the_order_is_a_stable_sort_whatever_the_blocks(labels: list[int], block: int, many: bool) -> None:
    given_labels = np.array(labels, np.int32)
    names = [str(label) for label in range(70_000 if many else 7)]  # beyond 16 bits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classes, "_BLOCK", block)
        index = ClassIndex(names, given_labels)
        order = np.arange(len(labels)) if index.order is None else index.order
    np.testing.assert_array_equal(order, np.argsort(given_labels, kind="stable"))
    assert index.counts[:7].tolist() == [labels.count(label) for label in range(7)]


def test_a_query_by_class_does_not_group_all_rows(make_store: Callable[..., ActivationStore]) -> None:
    split = make_store(rows=500)["train"]
    rows = split.query(classes=["3"])
    assert "order" not in vars(split.class_index)
    np.testing.assert_array_equal(rows, split.class_index.rows(3))


class Touched:
    """A row list that only counts what is asked of it: anything but single places fails."""

    def __init__(self) -> None:
        self.places = 0

    def __getitem__(self, places: Any) -> np.ndarray:
        assert isinstance(places, np.ndarray)
        self.places += places.size
        return places


def virtual_index(rows: int, names: int) -> tuple[ClassIndex, Touched]:
    """An index of rows that are nowhere, equally many of each class."""
    index, touched = ClassIndex(["x"] * names, np.empty(0, np.int32)), Touched()
    index.offsets = np.arange(names + 1) * (rows // names)
    vars(index)["order"] = touched
    return index, touched


@pytest.mark.parametrize("rows", [10**4, 10**7, 10**15])
def test_a_batch_touches_two_rows_per_class_however_many_there_are(rows: int) -> None:
    index, touched = virtual_index(rows, 1000)
    plan = plan_batch(index, np.arange(0, 1000, 2), 0, 5, 0.9)
    assert touched.places == 2 * 500
    for drawn in (plan.query_rows, plan.statistic_rows):
        np.testing.assert_array_equal(drawn // (rows // 1000), np.arange(0, 1000, 2))


def test_support_touches_as_many_rows_as_it_draws() -> None:
    index, touched = virtual_index(10**6, 10)
    assert draw_support(index, np.arange(10), 5, 0, 0).shape == (10, 5)
    assert touched.places == 50


def test_row_numbers_as_ids_need_no_memory() -> None:
    ids = RowNumbers(10**12)
    assert len(ids) == 10**12
    assert (ids[0], ids[-1], ids[7:10]) == ("0", str(10**12 - 1), ["7", "8", "9"])
    with pytest.raises(IndexError):
        ids[10**12]
    few = RowNumbers(120)
    assert list(few) == [str(row) for row in range(120)]
    assert glob_rows(few, "*11*").tolist() == [11, *range(110, 120)]

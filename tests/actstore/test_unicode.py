"""Names of files and folders whose bytes are no UTF-8: kept as they are where a path is recorded, refused as names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import InvalidInputError, StorageError
from actstore.search.bounded import BoundedSearch
from actstore.storage.place import parse_place
from actstore.tables.importing import ImportRequest, append_file, import_file
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import verify_store

BROKEN = os.fsdecode(b"caf\xe9")
ROWS = np.random.default_rng(0).random((20, 8), np.float32)


def test_class_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="udce9"):
        actstore.create(tmp_path / "x.zarr", classes=["a", BROKEN], dim=8)
    store = actstore.create(tmp_path / "x.zarr", classes=["a"], dim=8)
    with pytest.raises(InvalidInputError, match="udce9"):
        store.add_classes(["b", BROKEN])
    with pytest.raises(InvalidInputError, match="udce9"):
        actstore.from_arrays(tmp_path / "y.zarr", {"train": (ROWS, np.array([BROKEN] * 20, dtype=object))})
    assert actstore.open(tmp_path / "x.zarr").classes == ("a",)


@pytest.mark.parametrize(
    "given", [{"ids": [BROKEN] * 20}, {"columns": {"place": [BROKEN] * 20}}, {"labels": [BROKEN] * 20}]
)
def test_what_belongs_to_rows_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    store = actstore.create(tmp_path / "x.zarr", classes=["a"], dim=8)
    with store.writer("train") as writer:
        with pytest.raises(InvalidInputError, match="udce9"):
            writer.append(ROWS, **given)
        writer.append(ROWS)
    np.testing.assert_array_equal(store["train"][:], ROWS.astype(np.float16))


def test_a_split_a_column_and_an_object_are_refused(tmp_path: Path) -> None:
    store = actstore.create(tmp_path / "x.zarr", classes=["a"], dim=8)
    with pytest.raises(InvalidInputError, match="udce9"):
        store.writer(BROKEN)
    with store.writer("train") as writer, pytest.raises(InvalidInputError, match="udce9"):
        writer.append(ROWS, columns={BROKEN: np.zeros(20)})
    with pytest.raises(InvalidInputError, match="udce9"):
        parse_place(f"s3://bucket/{BROKEN}.zarr")


def test_paths_are_recorded_as_they_are(tmp_path: Path) -> None:
    source, place = tmp_path / f"{BROKEN}.npy", tmp_path / f"{BROKEN}.zarr"
    np.save(source, ROWS)
    store = import_file(ImportRequest(source), place, chunk_rows=16)
    assert store.spec.provenance["source"] == str(source)
    np.save(source, ROWS + 1)
    assert append_file(ImportRequest(source), place) == 20
    split = actstore.open(place)["train"]
    assert [entry["path"] for entry in split.committed.sources] == [str(source)] * 2
    store.add_provenance(note=BROKEN)
    assert actstore.open(place).spec.provenance["note"] == BROKEN
    assert verify_store(store) == []


def test_rows_of_such_a_file_are_read_again(tmp_path: Path) -> None:
    source = tmp_path / f"{BROKEN}.npy"
    np.save(source, ROWS)
    store = import_file(ImportRequest(source), tmp_path / "x.zarr")
    chunk = tmp_path / "x.zarr/train/activations/c/0/0"
    chunk.write_bytes(b"\0" + chunk.read_bytes()[1:])
    repair_faults(store, verify_store(store))
    np.testing.assert_array_equal(store["train"][:], ROWS)


def test_a_search_needs_no_file_and_an_index_says_why_there_is_none(tmp_path: Path) -> None:
    split = actstore.from_arrays(tmp_path / f"{BROKEN}.zarr", {"train": (ROWS, None)})["train"]
    assert split.search(ROWS[3:4], k=1)[1].item() == 3
    with pytest.raises(StorageError, match="Unicode"):
        BoundedSearch.build(split)

"""Damaged metadata: named by verify, and restored from what else the store holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import ActstoreError, DamagedError
from actstore.upkeep.repair import repair_faults, restore_groups
from actstore.upkeep.verify import verify_store

ARRAYS = ("activations", "labels", "path_offsets", "path_bytes")
CHANGES: dict[str, tuple[str, Any]] = {
    "dtype": ("data_type", "float64"),
    "longer": ("shape", None),
    "codecs": ("codecs", [{"name": "bytes"}]),
    "fill value": ("fill_value", 1),
    "chunk shape": ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [3, 64]}}),
    "nonsense": ("zarr_format", 9),
}


def change(file: Path, key: str, value: Any) -> None:
    """As a program would that knows nothing of checksums, in a store of before them."""
    document = json.loads(file.read_bytes())
    document["attributes"].pop("checksum")
    document[key] = [document["shape"][0] + 7, *document["shape"][1:]] if value is None else value
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("changed", CHANGES)
def test_metadata_of_arrays_is_compared_and_restored(make_store: Any, array: str, changed: str) -> None:
    store = make_store(rows=200)
    file = store.path / "train" / array / "zarr.json"
    sound = file.read_bytes()
    change(file, *CHANGES[changed])
    (fault,) = verify_store(store)
    assert (fault.array, fault.kind, fault.file) == (array, "metadata", str(file))
    assert str(file) in str(fault)
    ((_, said),) = repair_faults(store, [fault])
    assert said == "repaired from the metadata of its split"
    assert file.read_bytes() == sound
    assert verify_store(store) == []


@pytest.mark.parametrize("layout", [{"codec": "blosc"}, {"shard_inner_rows": 12}, {"dtype": "f4"}], ids=str)
def test_other_layouts_are_restored_too(make_store: Any, layout: dict[str, Any]) -> None:
    store = make_store(rows=200, **layout)
    file = store.path / "train/activations/zarr.json"
    sound = file.read_bytes()
    file.unlink()
    repair_faults(store, verify_store(store))
    assert file.read_bytes() == sound


def test_metadata_without_checksums_is_accepted(make_store: Any) -> None:
    store = make_store(rows=200)
    for file in store.path.rglob("zarr.json"):
        document = json.loads(file.read_bytes())
        document["attributes"].pop("checksum")
        file.write_text(json.dumps(document))
    ledger = store.path / "train/activations/ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    ledger.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "checksum"}) + "\n" for line in lines))
    again = actstore.open(store.path)
    assert verify_store(again) == []
    np.testing.assert_array_equal(again["train"].take(np.arange(200)), store.values)
    again["train"].means()


@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_a_lost_split_is_described_again(make_store: Any, damage: bytes | None) -> None:
    store = make_store(rows=200)
    file = store.path / "train/zarr.json"
    before = store.splits["train"]
    file.unlink() if damage is None else file.write_bytes(damage)
    (fault,) = verify_store(store)
    assert (fault.split, fault.array) == ("train", "zarr.json")
    assert str(file) in str(fault)
    ((_, said),) = restore_groups(store.path)
    assert "200 rows; where they came from is lost" in said
    after = actstore.open(store.path).splits["train"]
    assert (after.rows, after.content, after.id_bytes) == (200, before.content, before.id_bytes)
    assert verify_store(store) == []
    np.testing.assert_array_equal(store["train"].take(np.arange(200)), store.values)
    assert list(store["train"].ids) == store.ids


def test_what_cannot_be_restored_is_said(make_store: Any) -> None:
    store = make_store(rows=200)
    (store.path / "zarr.json").write_bytes(b"{")
    with pytest.raises(DamagedError, match="class names and the origin of the rows are kept nowhere else"):
        restore_groups(store.path)
    with pytest.raises(ActstoreError, match=r"zarr\.json"):
        actstore.open(store.path)


def test_norms_and_indexes_are_verified_and_dropped(make_store: Any) -> None:
    store = make_store(rows=200)
    query = np.ones((1, 64), np.float32)
    right = store["train"].search(query, 5)
    (file,) = Path(f"{store.path}.search", "train").glob("norms.*.safetensors")
    data = bytearray(file.read_bytes())
    data[-3] ^= 64
    file.write_bytes(data)
    (fault,) = verify_store(store)
    assert fault.array == "search/norms"
    assert str(file) in str(fault)
    np.testing.assert_array_equal(store["train"].search(query, 5)[1], right[1])  # computed again
    assert verify_store(store) == []
    file.write_bytes(data)
    ((_, said),) = repair_faults(store, verify_store(store))
    assert said.startswith("removed")
    assert verify_store(store) == []
    assert not file.exists()

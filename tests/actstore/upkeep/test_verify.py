from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import actstore
from actstore.tables.filling import fill_split, open_or_create
from actstore.tables.importing import ImportRequest, append_file, import_file
from actstore.tables.row_source import SyntheticSpec
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import Fault, verify_store

LAYOUTS: list[dict[str, Any]] = [{}, {"codec": "blosc"}, {"shard_inner_rows": 12}]


def chunk_files(store: actstore.ActivationStore) -> list[Path]:
    return sorted(file for file in store.path.rglob("c/**/*") if file.is_file())


def named(fault: Fault) -> str:
    return f"{fault.split}/{fault.array}/c/{fault.chunk}"


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_healthy_store_has_no_faults(make_store: Any, layout: dict[str, Any]) -> None:
    store = make_store(**layout)
    store["train"].statistics()
    assert verify_store(store) == []


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_flipped_bit_names_its_chunk(make_store: Any, layout: dict[str, Any]) -> None:
    store = make_store(**layout)
    store["train"].statistics()
    random = np.random.default_rng(0)
    for file in chunk_files(store):
        data = bytearray(file.read_bytes())
        for position in {0, len(data) - 1, *random.integers(0, len(data), 3).tolist()}:
            flipped = bytearray(data)
            flipped[position] ^= 1 << int(random.integers(8))
            file.write_bytes(flipped)
            (fault,) = verify_store(store)
            assert str(file.relative_to(store.path)).startswith(named(fault)), fault
            assert fault.kind == "corrupt"
        file.write_bytes(data)
    assert verify_store(store) == []


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bit_of_any_chunk(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.getbasetemp() / "bits.zarr"
    if not place.exists():
        values = np.random.default_rng(3).random((400, 32))
        actstore.from_arrays(
            place, {"train": (values, np.zeros(400, int), [f"i{n}" for n in range(400)])}, chunk_rows=64
        )
    store = actstore.open(place)
    file = data.draw(st.sampled_from(chunk_files(store)))
    content = file.read_bytes()
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    file.write_bytes(changed)
    try:
        (fault,) = verify_store(store)
        assert str(file.relative_to(store.path)).startswith(named(fault))
    finally:
        file.write_bytes(content)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_kinds_of_faults_are_told_apart(make_store: Any, layout: dict[str, Any]) -> None:
    store = make_store(**layout)
    folder = store.path / "train/activations/c"
    (folder / "1/0").unlink()
    (folder / "2/0").write_bytes((folder / "2/0").read_bytes()[:-9])
    (folder / "3/0").write_bytes((folder / "3/0").read_bytes() + b"x")
    shutil.copy(folder / "5/0", folder / "4/0")  # a sound chunk in the wrong place
    kinds = {fault.chunk: fault.kind for fault in verify_store(store)}
    wrong_place = {4: "corrupt"} if not layout.get("codec") else {4: kinds[4]}  # blosc files differ in size too
    assert kinds == {1: "missing", 2: "truncated", 3: "corrupt", **wrong_place}


def test_non_finite_rows_are_named(make_store: Any) -> None:
    from actstore.layout.ledger import Entry, open_ledger
    from actstore.storage.atomic_file import crc32c
    from actstore.storage.place import write_chunk

    store = make_store()
    values = store.values[96:192].copy()
    values[5, 3] = np.inf
    size = write_chunk(store.path / "train/activations/c/1/0", values)
    ledger = open_ledger(store.path / "train/activations")
    ledger.append(Entry(1, 96, crc32c(values), size).line())
    ledger.close()
    (fault,) = (fault for fault in verify_store(store) if fault.array == "activations")
    assert (fault.kind, fault.chunk) == ("non-finite", 1)
    assert "row 101" in fault.detail


def test_a_damaged_ledger_is_said(make_store: Any) -> None:
    store = make_store()
    ledger = store.path / "train/activations/ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"crc"', '"cr', 1))
    (fault,) = verify_store(store)
    assert fault.kind == "metadata"
    assert "line 1 is damaged" in fault.detail


@pytest.fixture
def imported(tmp_path: Path) -> actstore.ActivationStore:
    """Rows from two files, the second appended, so that one chunk has two sources."""
    values = np.random.default_rng(0).random((500, 16), dtype=np.float32)
    for name, part in (("a", slice(0, 300)), ("b", slice(300, 500))):
        np.save(tmp_path / f"{name}.npy", values[part])
        (tmp_path / f"{name}.txt").write_text("".join(f"c{row % 3}\n" for row in range(500)[part]))
        (tmp_path / f"{name}.ids").write_text("".join(f"{name}{row}\n" for row in range(500)[part]))

    def request(name: str) -> ImportRequest:
        return ImportRequest(tmp_path / f"{name}.npy", labels=tmp_path / f"{name}.txt", ids=tmp_path / f"{name}.ids")

    import_file(request("a"), tmp_path / "x.zarr", chunk_rows=64)
    append_file(request("b"), tmp_path / "x.zarr")
    return actstore.open(tmp_path / "x.zarr")


def test_repair_reads_only_bad_chunks_again(imported: actstore.ActivationStore) -> None:
    before = {file: file.read_bytes() for file in chunk_files(imported)}
    times = {file: file.stat().st_mtime_ns for file in before}
    folder = imported.path / "train"
    (folder / "activations/c/4/0").unlink()  # rows 256 to 319: both files
    (folder / "activations/c/0/0").write_bytes(b"short")
    (folder / "labels/c/0").write_bytes(before[folder / "labels/c/0"][:-1] + b"?")
    (folder / "path_bytes/c/0").unlink()
    faults = verify_store(imported)
    assert len(faults) == 4
    outcomes = repair_faults(imported, faults)
    assert {said for _, said in outcomes} == {"repaired from its source"}
    assert verify_store(imported) == []
    assert {file: file.read_bytes() for file in chunk_files(imported)} == before
    untouched = folder / "activations/c/5/0"
    assert untouched.stat().st_mtime_ns == times[untouched]


def test_repair_refuses_a_changed_source(imported: actstore.ActivationStore, tmp_path: Path) -> None:
    chunk = imported.path / "train/activations/c/0/0"
    chunk.unlink()
    np.save(tmp_path / "a.npy", np.zeros((300, 16), np.float32))
    ((_, said),) = repair_faults(imported, verify_store(imported))
    assert "now holds other rows" in said
    assert not chunk.exists()
    (tmp_path / "a.npy").unlink()
    ((_, said),) = repair_faults(imported, verify_store(imported))
    assert "no such file" in said


def test_repair_of_generated_rows_and_of_rows_from_a_program(make_store: Any, tmp_path: Path) -> None:
    spec = SyntheticSpec(rows=3000, dim=32, classes=5)
    store = open_or_create(tmp_path / "s.zarr", {"train": spec.table()}, spec.class_names(), chunk_rows=512)
    fill_split(store, "train", spec.table(), spec.source())
    chunk = store.path / "train/activations/c/4/0"
    data = chunk.read_bytes()
    chunk.unlink()
    repair_faults(store, verify_store(store))
    assert chunk.read_bytes() == data
    other = make_store()
    (other.path / "train/activations/c/4/0").unlink()
    ((_, said),) = repair_faults(other, verify_store(other))
    assert "cannot be read again" in said


def test_bad_statistics_are_dropped_and_computed_again(make_store: Any) -> None:
    store = make_store()
    right = store["train"].statistics().mean
    (store.path / "train/class_mean/c/0/0").write_bytes(b"x")
    ((_, said),) = repair_faults(store, verify_store(store))
    assert said.startswith("removed")
    np.testing.assert_array_equal(store["train"].statistics().mean, right)
    assert verify_store(store) == []


def test_metadata_and_columns_are_held_against_the_hash(make_store: Any) -> None:
    import zarr

    from actstore.layout.metadata import read_attributes, resize, write_attributes

    store = make_store()
    zarr.open_array(store.path / "train/labels", mode="r+")[5] = 6 - store.labels[5]
    (fault,) = verify_store(store)
    assert fault.detail.startswith("the labels are not those committed")
    zarr.open_array(store.path / "train/labels", mode="r+")[5] = store.labels[5]
    assert verify_store(store) == []
    resize(store.path / "train/labels", 0)
    assert [fault.array for fault in verify_store(store)] == ["labels"]
    resize(store.path / "train/labels", 1000)
    attributes = read_attributes(store.path / "train")
    write_attributes(store.path / "train", {"actstore": {**attributes["actstore"], "rows": 5}})
    assert "zarr.json" in {fault.array for fault in verify_store(store)}
    write_attributes(store.path / "train", attributes)
    (store.path / "train/activations/zarr.json").unlink()
    assert [fault.array for fault in verify_store(store)] == ["activations"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_an_append_under_way_is_no_fault(make_store: Any, layout: dict[str, Any]) -> None:
    store = make_store(rows=100, **layout)
    with pytest.raises(RuntimeError), store.writer("train", source={"kind": "x"}) as writer:
        writer.append(np.ones((150, 64)), np.zeros(150, int), [f"n{row}" for row in range(150)])
        raise RuntimeError("stop")
    ledger = store.path / "train/activations/ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:2]))  # killed before its line
    assert verify_store(store) == []


def test_repair_of_an_encoded_chunk_keeps_the_shape(tmp_path: Path) -> None:
    import zarr

    np.save(tmp_path / "a.npy", np.ones((70, 8), np.float32))
    store = import_file(ImportRequest(tmp_path / "a.npy"), tmp_path / "x.zarr", codec="blosc", chunk_rows=64)
    (store.path / "train/activations/c/1/0").write_bytes(b"x")
    repair_faults(store, verify_store(store))
    assert verify_store(store) == []
    assert zarr.open_array(store.path / "train/activations", mode="r").shape == (70, 8)

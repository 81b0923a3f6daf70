"""What others put into a store is told from what actstore writes, and never removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import InvalidInputError, LockedError
from actstore.layout.metadata import create_group, remove_own, strangers
from actstore.spec import KEY, StoreSpec
from actstore.storage.object_path import ObjectPath
from actstore.storage.place import FolderPath
from actstore.tables import importing
from actstore.tables.importing import ImportRequest, import_file
from tests.store_files import files

VALUES = np.random.default_rng(0).random((150, 16), dtype=np.float32)


@pytest.fixture
def store(tmp_path: Path) -> actstore.ActivationStore:
    """With all that actstore writes: columns, statistics, an append under way, and a second, unfinished split."""
    columns = {"area": np.arange(150.0), "place": ["x"] * 150}
    ids = [str(row) for row in range(150)]
    rows = (VALUES, np.zeros(150, int), ids, columns)
    made = actstore.from_arrays(tmp_path / "x.zarr", {"train": rows}, classes=["a"], chunk_rows=64)
    made["train"].statistics()
    for name, more in (("train", ids[:9]), ("begun", None)):
        writer = made.writer(name)
        writer.append(VALUES[:9], np.zeros(9, int), more)
        writer.close()
    return made


def test_all_of_a_store_is_its_own(store: Any, tmp_path: Path) -> None:
    assert strangers(FolderPath(tmp_path / "x.zarr")) == []
    assert remove_own(FolderPath(tmp_path / "x.zarr")) == []
    assert not (tmp_path / "x.zarr").exists()


OTHERS = (
    "README", "notes/x", ".git/HEAD", "train/zarr", "train/other/zarr.json", "train/labels/c/x", "train/labels/c/0.bak",
    "train/activations/ledger.jsonl.old", "train/activations/c/1/note", "train/activations/pending/mine",
    "zarr.json.old",
)  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_stays(store: Any, tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.zarr" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"mine")
    (found,) = strangers(FolderPath(tmp_path / "x.zarr"))
    assert file == found or found in file.parents
    assert remove_own(FolderPath(tmp_path / "x.zarr")) == [found]
    assert files(tmp_path / "x.zarr") == {name: b"mine"}


def test_empty_folders_and_links_of_others_stay(store: Any, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/zarr.json").write_bytes(b"{}")
    (tmp_path / "x.zarr/empty").mkdir()
    (tmp_path / "x.zarr/train/link").symlink_to(tmp_path / "elsewhere")
    remove_own(FolderPath(tmp_path / "x.zarr"))
    assert (tmp_path / "x.zarr/empty").is_dir()
    assert (tmp_path / "x.zarr/train/link/zarr.json").read_bytes() == b"{}"


def test_a_failed_from_arrays_leaves_what_lay_there(tmp_path: Path) -> None:
    (tmp_path / "x.zarr/.git/refs").mkdir(parents=True)
    (tmp_path / "x.zarr/.git/HEAD").write_bytes(b"main")
    with pytest.raises(InvalidInputError):
        actstore.from_arrays(tmp_path / "x.zarr", {"train": (np.full((3, 4), np.nan), None)})
    assert files(tmp_path / "x.zarr") == {".git/HEAD": b"main"}
    assert (tmp_path / "x.zarr/.git/refs").is_dir()


def test_an_empty_store_is_discarded_unless_others_put_something_there(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", VALUES)
    for name, dtype in (("x.zarr", "f4"), ("y.zarr", "f2")):
        actstore.create(tmp_path / name, classes=["a"], dim=16, dtype="f2")
        if name == "y.zarr":
            (tmp_path / name / "README").write_bytes(b"mine")
        made = import_file(ImportRequest(tmp_path / "rows.npy"), tmp_path / name)
        assert made.spec.dtype == dtype
    assert (tmp_path / "y.zarr/README").read_bytes() == b"mine"


def test_a_store_that_somebody_has_begun_to_fill_is_not_discarded(tmp_path: Path) -> None:
    """It holds no rows yet: another import that would have its own dtype must not take it away."""
    store = actstore.create(tmp_path / "x.zarr", classes=["a"], dim=16, dtype="f2")
    np.save(tmp_path / "rows.npy", VALUES)
    with store.writer("train") as writer:
        with pytest.raises(LockedError):
            import_file(ImportRequest(tmp_path / "rows.npy"), tmp_path / "x.zarr")
        writer.append(VALUES[:5])
    np.testing.assert_array_equal(actstore.open(store.path)["train"][:], VALUES[:5].astype(np.float16))


THEIRS = ("notes.txt", "x.zarr/mine/a.jpg", "x.zarr/train/notes.txt", "x.zarr/train/activations/c/7.bak", "x.zarr2/y")


@pytest.fixture
def bucket() -> ObjectPath:
    """A bucket with objects of its owner beside and below the place of a store."""
    top = ObjectPath.parse("memory://own-files")
    top.remove_below(top.contents())
    for name in THEIRS:
        (top / name).put(b"mine")
    return top


def objects(top: ObjectPath) -> set[str]:
    return {name for name, is_folder in top.contents() if not is_folder}


def fill(top: ObjectPath) -> actstore.ActivationStore:
    """A store with statistics, columns and an append under way, where objects of others lie already."""
    spec = StoreSpec(classes=("a",), dim=16, chunk_rows=64, dtype="f4")
    create_group(top / "x.zarr", {KEY: spec.to_json()})
    store = actstore.open("memory://own-files/x.zarr")
    with store.writer("train") as writer:
        writer.append(VALUES, np.zeros(150, int), columns={"area": np.arange(150.0)})
    store["train"].statistics()
    writer = store.writer("train", source={"kind": "test"})
    writer.append(VALUES[:9], np.zeros(9, int), columns={"place": ["x"] * 9})
    writer.close()
    return store


def test_of_a_bucket_only_the_store_is_removed(bucket: ObjectPath) -> None:
    fill(bucket)
    left = remove_own(bucket / "x.zarr")
    assert objects(bucket) == set(THEIRS)
    assert {str(place).removeprefix("memory://own-files/") for place in left} == {
        "x.zarr/mine", "x.zarr/train/notes.txt", "x.zarr/train/activations/c/7.bak",
    }  # fmt: skip


def test_a_discarded_split_leaves_what_others_put_there(bucket: ObjectPath, tmp_path: Path) -> None:
    for store in (fill(bucket), actstore.create(tmp_path / "x.zarr", classes=["a"], dim=16)):
        place = store.path / "val"
        with store.writer("val") as writer:
            writer.append(VALUES[:9], np.zeros(9, int))
            (place / "notes.txt").put(b"mine")
            (place / "labels" / "c" / "mine").put(b"mine")
            writer.discard()
        assert {name for name, is_folder in place.contents() if not is_folder} == {"notes.txt", "labels/c/mine"}
        assert "val" not in actstore.open(store.path)


def test_a_failed_from_arrays_leaves_objects_that_came_meanwhile(
    bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = importing.open_or_create

    def created(*arguments: Any, **options: Any) -> Any:
        store = create(*arguments, **options)
        (bucket / "y.zarr" / "train" / "mine").put(b"mine")
        return store

    monkeypatch.setattr(importing, "open_or_create", created)
    with pytest.raises(InvalidInputError):
        actstore.from_arrays("memory://own-files/y.zarr", {"train": (np.full((3, 4), np.nan), None)})
    assert objects(bucket) == {*THEIRS, "y.zarr/train/mine"}

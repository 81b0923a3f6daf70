"""An import or append that is refused leaves the store as it was, on a disk and in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import InvalidInputError
from actstore.storage.place import parse_place
from actstore.tables.importing import ImportRequest, append_file, import_file
from actstore.upkeep.verify import verify_store

ROWS = np.random.default_rng(0).random((300, 16), np.float32)


@pytest.fixture(params=["folder", "bucket"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store with a split train, in chunks of 64 rows."""
    place = str(tmp_path / "x.zarr") if request.param == "folder" else f"memory://{tmp_path.name}/x.zarr"
    np.save(tmp_path / "good.npy", ROWS)
    import_file(ImportRequest(tmp_path / "good.npy"), place, chunk_rows=64)
    return place


def bad_file(folder: Path, row: int) -> Path:
    values = ROWS.copy()
    values[row, 2] = np.nan
    np.save(folder / "bad.npy", values)
    return folder / "bad.npy"


def labelled(folder: Path) -> dict[str, Any]:
    np.save(folder / "labels.npy", np.full(300, 77))
    return {"labels": folder / "labels.npy"}


@pytest.mark.parametrize("row", [0, 290])
def test_a_second_import(tmp_path: Path, target: str, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actstore.tables.row_source.BLOCK_BYTES", 100 * 16 * 4)  # four chunks are durable by row 290
    with pytest.raises(InvalidInputError, match=f"row {row} "):
        import_file(ImportRequest(bad_file(tmp_path, row), split="val"), target)
    store = actstore.open(target)
    assert list(store) == ["train"]
    assert not (parse_place(target) / "val").has_entries()
    assert verify_store(store) == []
    import_file(ImportRequest(tmp_path / "good.npy", split="val"), target)  # of another file, without --restart
    np.testing.assert_array_equal(actstore.open(target)["val"][:], ROWS)


@pytest.mark.parametrize("row", [0, 290])
def test_an_append(tmp_path: Path, target: str, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actstore.tables.row_source.BLOCK_BYTES", 100 * 16 * 4)
    with pytest.raises(InvalidInputError, match=f"row {300 + row} "):
        append_file(ImportRequest(bad_file(tmp_path, row)), target)
    store = actstore.open(target)
    assert store.unfinished_rows("train") == 0
    assert verify_store(store) == []
    np.testing.assert_array_equal(store["train"][:], ROWS)
    assert append_file(ImportRequest(tmp_path / "good.npy"), target, again=True) == 300
    np.testing.assert_array_equal(actstore.open(target)["train"][:], np.concatenate([ROWS, ROWS]))


def test_labels_beyond_the_classes(tmp_path: Path, target: str) -> None:
    with pytest.raises(InvalidInputError, match="label 77"):
        import_file(ImportRequest(tmp_path / "good.npy", split="val", **labelled(tmp_path)), target)
    assert list(actstore.open(target)) == ["train"]


def test_a_writer_that_is_discarded_is_closed(target: str) -> None:
    writer = actstore.open(target).writer("val")
    writer.append(ROWS)
    writer.discard()
    assert list(actstore.open(target)) == ["train"]
    with pytest.raises(InvalidInputError, match="closed"):
        writer.append(ROWS)
    with actstore.open(target).writer("val") as again:
        again.append(ROWS[:5])
    assert len(actstore.open(target)["val"]) == 5

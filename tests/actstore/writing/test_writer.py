"""Rows in: blocks of any size and type, labels and ids, appends, two writers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from actstore import creation
from actstore.errors import InvalidInputError, LockedError, NotAStoreError
from tests.store_files import files


def new_store(path: Path, **options: Any) -> actstore.ActivationStore:
    return actstore.create(path, **{"classes": ["a", "b", "c"], "dim": 64, "chunk_rows": 32, **options})


@given(blocks=st.lists(st.integers(0, 90), max_size=8), chunk=st.sampled_from([1, 7, 32]))
@settings(max_examples=25, deadline=None)
def test_blocks_of_any_size_give_the_same_store(
    blocks: list[int], chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    values = np.random.default_rng(0).random((sum(blocks), 8), dtype=np.float32)
    labels = np.arange(len(values)) % 3
    with new_store(folder / "parts.zarr", dim=8, chunk_rows=chunk).writer("train") as writer:
        start = 0
        for size in blocks:
            writer.append(values[start : start + size], labels[start : start + size])
            start += size
    with new_store(folder / "whole.zarr", dim=8, chunk_rows=chunk).writer("train") as writer:
        writer.append(values, labels)
    assert files(folder / "parts.zarr") == files(folder / "whole.zarr")
    np.testing.assert_array_equal(actstore.open(folder / "parts.zarr")["train"][:], values.astype(np.float16))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i4", "u1"])
def test_input_types_are_converted(tmp_path: Path, dtype: str) -> None:
    values = (np.arange(64 * 40).reshape(40, 64) % 100).astype(dtype)
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (values, None)}, chunk_rows=32)
    np.testing.assert_array_equal(store["train"][:], values.astype(store.spec.dtype))
    assert store.spec.dtype == ("f2" if dtype in ("f2", "u1") else "f4")
    assert set(store["train"].labels) == {-1}


def test_strided_and_read_only_input(tmp_path: Path, random: np.random.Generator) -> None:
    values = random.random((64, 80), dtype=np.float32).T[::2]  # (40, 64), strided
    values.flags.writeable = False
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (values, None)})
    np.testing.assert_array_equal(store["train"][:], values)


def test_labels_may_be_class_names(tmp_path: Path) -> None:
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (np.ones((3, 8)), ["cat", "ant", "cat"])})
    assert store.classes == ("ant", "cat")
    assert store["train"].labels.tolist() == [1, 0, 1]


BAD_BLOCKS: dict[str, tuple[Any, Any, Any, str]] = {
    "NaN": (np.where(np.arange(128).reshape(2, 64) == 70, np.nan, 1), None, None, r"row 41 .* holds nan at feature 6"),
    "Inf": (np.full((1, 64), -np.inf), None, None, r"row 40 .* holds -inf"),
    "overflow": (np.full((1, 64), 70000.0), None, None, r"row 40 .* holds 70000, beyond fp16's 65504; use dtype f4"),
    "dim": (np.ones((1, 63)), None, None, r"must have shape \(n, 64\), got \(1, 63\)"),
    "label": (np.ones((2, 64)), [0, 3], None, r"row 41 has label 3; this store has 3 classes"),
    "label name": (np.ones((1, 64)), ["dog"], None, r"'dog' is not a class"),
    "label type": (np.ones((1, 64)), [0.5], None, r"whole numbers or class names"),
    "label count": (np.ones((2, 64)), [0], None, r"expected 2 labels"),
    "id count": (np.ones((2, 64)), [0, 0], ["x"], r"expected 2 ids"),
    "id dots": (np.ones((1, 64)), [0], ["a/../b"], r"'\.\.' is refused"),
    "id newline": (np.ones((1, 64)), [0], ["a\nb"], r"line breaks"),
    "id empty": (np.ones((1, 64)), [0], [""], r"empty ids"),
    "text": (np.full((1, 64), "x"), None, None, r"real numbers"),
}


@pytest.mark.parametrize("case", BAD_BLOCKS)
def test_a_bad_block_is_refused_and_loses_nothing(tmp_path: Path, case: str) -> None:
    values, labels, ids, message = BAD_BLOCKS[case]
    store = new_store(tmp_path / "x.zarr")
    good_ids = [f"{row}.jpg" for row in range(40)] if ids is not None else None
    with store.writer("train") as writer:
        writer.append(np.ones((40, 64)), np.zeros(40, int), good_ids)
        with pytest.raises(InvalidInputError, match=message):
            writer.append(values, labels, ids)
    np.testing.assert_array_equal(store["train"][:], np.ones((40, 64)))


def test_ids_for_all_rows_or_none(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train") as writer:
        writer.append(np.ones((40, 64)), ids=[f"{row}" for row in range(40)])
        with pytest.raises(InvalidInputError, match="has ids so far"):
            writer.append(np.ones((1, 64)))
    with pytest.raises(InvalidInputError, match="has ids so far"), store.writer("train") as writer:
        writer.append(np.ones((1, 64)))


def test_append_to_a_finished_split(make_store: Any) -> None:
    store = make_store(rows=100)
    reader = store["train"]
    _ = reader[:]
    store.add_classes(["new"])
    for turn in range(3):
        with store.writer("train") as writer:
            writer.append(np.full((30, 64), turn), ["new"] * 30, [f"new/{turn}-{row}" for row in range(30)])
    train = store["train"]
    assert len(train) == 190
    assert len(train.committed.history) == 4
    np.testing.assert_array_equal(train[100:], np.repeat([0, 1, 2], 30)[:, None] * np.ones((1, 64)))
    np.testing.assert_array_equal(train[:100], store.values)
    assert train.ids[189] == "new/2-29"
    assert train.class_index.counts[-1] == 90
    np.testing.assert_array_equal(reader[:], store.values)  # an open reader keeps its view


def test_two_writers_are_refused_but_two_splits_are_fine(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train") as writer:
        writer.append(np.ones((3, 64)))
        with pytest.raises(LockedError, match="another process is writing"):
            store.writer("train")
        with store.writer("val") as other:
            other.append(np.ones((2, 64)))
    assert len(store["train"]) == 3
    assert len(store["val"]) == 2


def test_an_existing_path_is_not_overwritten(make_store: Any, tmp_path: Path) -> None:
    store = make_store()
    with pytest.raises(NotAStoreError, match="exists already"):
        actstore.create(store.path, classes=[], dim=3)
    with pytest.raises(NotAStoreError, match="exists already"):
        actstore.from_arrays(store.path, {"train": (np.ones((1, 3)), None)})


def test_lengths_must_agree(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="has 4 rows but 3 labels"):
        actstore.from_arrays(tmp_path / "x.zarr", {"train": (np.ones((4, 3)), [0, 1, 2])})
    assert not (tmp_path / "x.zarr").exists()


def test_an_empty_split_is_a_split(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train"):
        pass
    assert store["train"][:].shape == (0, 64)
    assert list(store["train"].blocks()) == []


def test_a_split_may_have_a_dim_of_its_own(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    for name, dim in (("train", 64), ("train.layer3", 1000)):
        with store.writer(name, dim=dim) as writer:
            writer.append(np.full((70, dim), 2.0), np.zeros(70, int))
    assert store["train.layer3"].shape == (70, 1000)
    np.testing.assert_array_equal(store["train.layer3"].take([69, 0]), np.full((2, 1000), 2))
    np.testing.assert_allclose(store["train.layer3"].means()[0], 2)
    from actstore.upkeep.verify import verify_store

    assert verify_store(store) == []


def test_a_block_of_several_chunks_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    values = np.ones((100, 64))
    values[90, 0] = np.nan
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train") as writer:
        with pytest.raises(InvalidInputError, match="row 90"):
            writer.append(values)
        assert writer.position == 0
        writer.append(np.nan_to_num(values))
    assert len(store["train"]) == 100


def test_classes_added_through_two_handles_are_all_kept(tmp_path: Path) -> None:
    new_store(tmp_path / "x.zarr")
    one, other = actstore.open(tmp_path / "x.zarr"), actstore.open(tmp_path / "x.zarr")
    one.add_classes(["x"])
    other.add_classes(["y"])
    one.add_provenance(backbone="resnet50")
    assert actstore.open(tmp_path / "x.zarr").classes == ("a", "b", "c", "x", "y")


def test_of_two_that_make_a_store_at_once_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = creation.require_free, []

    def late(path: Any) -> None:
        real(path)
        if not made:
            made.append(True)
            actstore.create(tmp_path / "x.zarr", classes=["first"], dim=3)

    monkeypatch.setattr(creation, "require_free", late)
    with pytest.raises(NotAStoreError):
        actstore.create(tmp_path / "x.zarr", classes=["second"], dim=4)
    assert actstore.open(tmp_path / "x.zarr").classes == ("first",)

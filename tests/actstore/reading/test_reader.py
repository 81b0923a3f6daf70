"""One set of checks for every layout: mapped, misaligned, compressed, sharded, fp32."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import actstore
from actstore.errors import DamagedError, InvalidInputError, NotAStoreError, RowRangeError
from actstore.reading.mapped_rows import MappedRows
from actstore.reading.rows import FetchedRows
from actstore.upkeep.verify import verify_store

LAYOUTS: dict[str, dict[str, Any]] = {
    "mapped": {},
    "misaligned": {"chunk_rows": 7},
    "blosc": {"codec": "blosc"},
    "sharded": {"shard_inner_rows": 12},
    "fp32": {"dtype": "f4"},
}


@pytest.fixture(params=LAYOUTS)
def store(request: pytest.FixtureRequest, make_store: Any) -> Any:
    return make_store(rows=530, **LAYOUTS[request.param])


def test_take_equals_numpy(store: Any, random: np.random.Generator) -> None:
    rows = random.integers(0, 530, 300)
    np.testing.assert_array_equal(store["train"].take(rows), store.values[rows])


def test_rows_labels_and_ids_come_back(store: Any) -> None:
    train = store["train"]
    np.testing.assert_array_equal(train[:], store.values)
    np.testing.assert_array_equal(train.labels, store.labels)
    assert list(train.ids) == store.ids
    assert train.ids[-1] == store.ids[-1]
    assert train.shape == (530, 64)


@pytest.mark.parametrize("key", [
    5, -1, slice(3, 200), slice(500, 10, -7), slice(9, 3), [4, 2, 2], [-1], [3, -530, -2], ..., (..., 5), (7, ...),
    (4, ..., 3), (slice(0, 9), 3), (slice(0, 9), [3, 1]), ([4, -1], 2), ([4, -1], slice(5)), ([4, -1, 0], [3, 3, -1]),
    (..., slice(2)), (),
])  # fmt: skip
def test_indexing_follows_numpy(store: Any, key: Any) -> None:
    np.testing.assert_array_equal(store["train"][key], store.values[key])


def test_of_class(store: Any) -> None:
    for label, name in enumerate(store.classes):
        np.testing.assert_array_equal(store["train"].of_class(name), store.values[store.labels == label])


@pytest.mark.parametrize("step", [None, 1000, 96, 41])
def test_blocks_cover_all_rows_in_order(store: Any, step: int | None) -> None:
    np.testing.assert_array_equal(np.concatenate(list(store["train"].blocks(step))), store.values)


def test_pieces_make_up_a_take(store: Any, random: np.random.Generator) -> None:
    rows = random.integers(0, 530, 400)
    out = np.zeros((400, 64), store.values.dtype)
    for part, values in store["train"].rows.pieces(rows):
        out[part] = values
    np.testing.assert_array_equal(out, store.values[rows])


def test_masks_empty_takes_and_duplicates(store: Any) -> None:
    mask = store.labels == 2
    np.testing.assert_array_equal(store["train"].take(mask), store.values[mask])
    assert store["train"].take([]).shape == (0, 64)
    np.testing.assert_array_equal(store["train"].take([8] * 5), store.values[[8] * 5])


def test_conversions(store: Any) -> None:
    train = store["train"]
    np.testing.assert_array_equal(train.to_dask().compute(), store.values)
    assert torch.equal(train.to_torch(), torch.from_numpy(train[:].copy()))
    picked = train.to_torch(rows=[5, 1], dtype=torch.float32)
    np.testing.assert_array_equal(picked.numpy(), store.values[[5, 1]].astype(np.float32))
    dataset = train.to_xarray()
    np.testing.assert_array_equal(dataset.activations.values, store.values)
    assert dataset.id.values[7] == store.ids[7]
    assert dataset.class_name.values[7] == str(store.labels[7])


def test_a_missing_chunk_is_an_error_and_never_zeros(store: Any) -> None:
    (store.path / "train/activations/c/1/0").unlink()
    with pytest.raises(DamagedError, match=r"c/1/0 is missing"):
        store["train"].take([store.spec.chunk_rows + 1])


def test_threads_share_a_split(store: Any, random: np.random.Generator) -> None:
    train = store["train"]
    draws = [random.integers(0, 530, 50) for _ in range(20)]
    with ThreadPoolExecutor(4) as pool:
        for rows, taken in zip(draws, pool.map(train.take, draws), strict=True):
            np.testing.assert_array_equal(taken, store.values[rows])


def test_a_split_pickles_to_its_path(store: Any) -> None:
    train = store["train"]
    _ = train.rows
    copy = pickle.loads(pickle.dumps(train))
    np.testing.assert_array_equal(copy[:], store.values)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("layout", ["mapped", "blosc"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_loader_workers_see_every_row_once(make_store: Any, layout: str, start: str) -> None:
    store = make_store(rows=300, **LAYOUTS[layout])
    train = store["train"]
    _ = train[0]  # opened in the parent, as a user would have it
    loader = DataLoader(
        train.to_dataset(64, seed=3), batch_size=None, num_workers=2, multiprocessing_context=start, timeout=120
    )
    seen = np.concatenate([values.numpy() for values, _ in loader])
    np.testing.assert_array_equal(np.sort(seen, axis=0), np.sort(store.values, axis=0))


def test_readers_are_chosen_by_layout(make_store: Any) -> None:
    assert isinstance(make_store(name="a.zarr")["train"].rows, MappedRows)
    assert isinstance(make_store(name="b.zarr", chunk_rows=7)["train"].rows, FetchedRows)
    assert isinstance(make_store(name="c.zarr", codec="blosc")["train"].rows, FetchedRows)


def test_mapped_rows_outlive_their_split_and_cannot_be_written(make_store: Any) -> None:
    store = make_store()
    view = store["train"][10:20]
    np.testing.assert_array_equal(view, store.values[10:20])
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 0
    reader = store["train"].rows
    reader.release(0, 1000)
    np.testing.assert_array_equal(reader.read(10, 20), store.values[10:20])


def test_a_truncated_chunk_is_refused_before_it_is_mapped(make_store: Any) -> None:
    store = make_store()
    chunk = store.path / "train/activations/c/2/0"
    chunk.write_bytes(chunk.read_bytes()[:-100])
    with pytest.raises(DamagedError, match=r"c/2/0 is truncated: 12192 bytes, expected 12292"):
        store["train"].take([0])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([1000], "row 1000 is out of range: the split has rows 0 to 999"),
        ([0, -1001], "row -1001 is out of range: the split has rows 0 to 999, or -1000 to -1 from the end"),
        ([[1, 2]], "one-dimensional"),
        ([1.5], "list of integers"),
        ([True, False], "mask must have shape"),
    ],
)
def test_bad_rows(make_store: Any, rows: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_store()["train"].take(rows)


def test_negative_rows_count_from_the_end(make_store: Any) -> None:
    store = make_store()
    np.testing.assert_array_equal(store["train"].take([-1, 0, -1000]), store.values[[-1, 0, -1000]])
    np.testing.assert_array_equal(np.asarray(store["train"]), store.values)
    assert np.asarray(store["train"], dtype="f8").dtype == np.float64
    for key in ((1, 2, 3), (..., ...), None, (None, 1)):
        with pytest.raises((IndexError, ValueError)):
            store["train"][key]


def test_a_store_is_a_mapping_of_its_splits(make_store: Any) -> None:
    store = make_store()
    assert (list(store), len(store), "train" in store, list(store.keys())) == (["train"], 1, True, ["train"])
    assert {name: split.shape for name, split in store.items()} == {"train": (1000, 64)}
    assert store.get("nothing") is None
    with pytest.raises(KeyError) as caught:
        store["nothing"]
    assert isinstance(caught.value, InvalidInputError)
    assert str(caught.value).endswith("has no split 'nothing'; it has: train")
    assert store != actstore.open(store.path)
    assert len({store, actstore.open(store.path)}) == 2
    empty = actstore.create(store.path.with_name("empty.zarr"), classes=[], dim=3)
    assert empty
    assert list(empty) == []


def test_row_errors_are_index_errors_too(make_store: Any) -> None:
    with pytest.raises(IndexError):
        make_store()["train"][5000]
    assert issubclass(RowRangeError, IndexError)


def test_paths_that_are_no_store(tmp_path: Any, make_store: Any) -> None:
    with pytest.raises(NotAStoreError, match="does not exist"):
        actstore.open(tmp_path / "nothing.zarr")
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotAStoreError, match=r"no zarr\.json"):
        actstore.open(tmp_path / "folder")
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotAStoreError, match="is a file"):
        actstore.open(tmp_path / "file")
    store = make_store()
    with pytest.raises(NotAStoreError, match="not an activation store"):
        actstore.open(store.path / "train" / "labels")
    (store.path / "zarr.json").write_text("{broken")
    with pytest.raises(NotAStoreError, match="damaged"):
        actstore.open(store.path)


def test_stores_in_a_folder_are_named_and_splits_are_not(tmp_path: Any, make_store: Any) -> None:
    damaged = make_store().path
    with pytest.raises(NotAStoreError, match=f"in it are the stores {damaged}$"):
        actstore.open(damaged.parent)
    (damaged / "zarr.json").unlink()
    with pytest.raises(NotAStoreError, match=r"no zarr\.json") as caught:
        actstore.open(damaged)
    assert "train" not in str(caught.value)


def test_unknown_splits_and_classes_are_named(make_store: Any) -> None:
    store = make_store()
    with pytest.raises(InvalidInputError, match="no split 'test'; it has: train"):
        store["test"]
    with pytest.raises(InvalidInputError, match="no class is named 'cat'"):
        store["train"].of_class("cat")


def test_a_moved_store_still_opens(make_store: Any, tmp_path: Any) -> None:
    store = make_store()
    shutil.move(store.path, tmp_path / "moved.zarr")
    np.testing.assert_array_equal(actstore.open(tmp_path / "moved.zarr")["train"][:], store.values)


def test_mappings_go_when_their_arrays_are_gone(make_store: Any) -> None:
    from pathlib import Path

    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc/self/maps")
    store = make_store()
    for _ in range(5):
        view = store["train"][3:5]
    np.testing.assert_array_equal(view, store.values[3:5])
    assert maps.read_text().count(str(store.path)) == 11  # the last one, kept alive by its view
    del view
    assert str(store.path) not in maps.read_text()


def test_rows_are_read_without_the_metadata_of_their_array_and_verify_misses_it(make_store: Any) -> None:
    store = make_store(codec="blosc")
    (store.path / "train/activations/zarr.json").unlink()
    np.testing.assert_array_equal(store["train"].take([1]), store.values[[1]])
    assert [(fault.array, fault.kind) for fault in verify_store(store)] == [("activations", "metadata")]

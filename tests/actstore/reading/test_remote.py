"""Stores in a bucket: everything a local store can do, on moto's S3 server and in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import DamagedError, InvalidInputError, NotAStoreError, StorageError
from actstore.reading.mapped_rows import CachedRows
from actstore.reading.rows import FetchedRows
from actstore.storage.atomic_file import crc32c
from actstore.storage.object_path import ObjectPath
from actstore.streams.class_batches import ClassBatches
from actstore.upkeep.verify import verify_store
from tests.object_storage import IDS, LABELS, store_at

LAYOUTS: dict[str, dict[str, Any]] = {
    "single rows": {},
    "shards": {"shard_inner_rows": 8},
    "raw": {"shard_inner_rows": 0},
    "blosc": {"codec": "blosc"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cached", [False, True])
def test_rows_come_back(place: str, rows: Any, random: Any, layout: str, cached: bool, tmp_path: Path) -> None:
    store_at(place, rows, **LAYOUTS[layout])
    train = actstore.open(place, cache=tmp_path if cached else None)["train"]
    assert isinstance(train.rows, CachedRows) == cached
    wanted = random.integers(0, 1000, 300)
    for _ in range(2):  # the second time the cache is warm
        np.testing.assert_array_equal(train.take(wanted), rows[wanted])
    np.testing.assert_array_equal(train[90:600], rows[90:600])
    np.testing.assert_array_equal(np.concatenate(list(train.blocks(130))), rows)
    np.testing.assert_array_equal(train.of_class("3"), rows[LABELS == 3])
    assert train.take([]).shape == (0, 64)
    assert list(train.ids) == IDS
    assert verify_store(actstore.open(place)) == []


@pytest.mark.numeric
def test_analyses_agree_with_a_local_store(place: str, rows: Any, tmp_path: Path) -> None:
    remote, local = store_at(place, rows)["train"], store_at(str(tmp_path / "x.zarr"), rows)["train"]
    np.testing.assert_array_equal(remote.means(), local.means())
    assert actstore.open(place)["train"].statistics().count.tolist() == local.statistics().count.tolist()
    np.testing.assert_array_equal(remote.query(classes=["2"], path_glob="*1.jpg"), local.query(["2"], "*1.jpg"))
    np.testing.assert_array_equal(remote.to_dask()[5:700:3].compute(), local[5:700:3])
    for ours, theirs in zip(remote.search(rows[:5], 3), local.search(rows[:5], 3), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(ClassBatches(remote, steps=3), ClassBatches(local, steps=3), strict=True):
        np.testing.assert_array_equal(ours.queries, theirs.queries)
        np.testing.assert_array_equal(ours.statistics, theirs.statistics)
    assert remote.content == local.content


def test_kept_means_are_checked(place: str, rows: Any) -> None:
    store = store_at(place, rows)
    means = store["train"].means()
    chunk = ObjectPath.parse(place) / "train/class_mean/c/0/0"
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.put(bytes(data))
    assert [fault.array for fault in verify_store(store)] == ["class_mean"]
    np.testing.assert_array_equal(store["train"].means(), means)  # computed anew
    other = (np.frombuffer(bytes(data[:-4]), "<f8") + 1).tobytes()
    chunk.put(other + crc32c(other).to_bytes(4, "little"))  # sound in itself, but of other metadata
    np.testing.assert_array_equal(store["train"].means(), means)


def test_means_that_a_kill_has_cut_short_are_none(place: str, rows: Any) -> None:
    """Their metadata is removed first and written last: a chunk without it is no fault, and is written again."""
    store = store_at(place, rows)
    means, array = store["train"].means(), ObjectPath.parse(place) / "train/class_mean"
    (array / "zarr.json").unlink()
    assert verify_store(store) == []
    np.testing.assert_array_equal(actstore.open(place)["train"].means(), means)
    assert (array / "zarr.json").exists()


@pytest.mark.parametrize("layout", ["single rows", "raw"])
def test_a_damaged_chunk_is_named(place: str, rows: Any, layout: str, tmp_path: Path) -> None:
    store = store_at(place, rows, **LAYOUTS[layout])
    chunk = ObjectPath.parse(place) / "train/activations/c/1/0"
    data = bytearray(chunk.read_bytes())
    data[1000] ^= 1
    chunk.put(bytes(data))
    (fault,) = verify_store(store)
    assert (fault.kind, fault.chunk) == ("corrupt", 1)
    with pytest.raises(DamagedError, match=r"c/1/0 is corrupt"):
        actstore.open(place, cache=tmp_path)["train"].take([100])
    chunk.unlink()
    assert [fault.kind for fault in verify_store(store)] == ["missing"]
    with pytest.raises(DamagedError, match="missing"):
        store["train"].take([100])


def test_a_row_of_a_shard_is_checked_alone(place: str, rows: Any) -> None:
    store = store_at(place, rows)
    chunk = ObjectPath.parse(place) / "train/activations/c/0/0"
    data = bytearray(chunk.read_bytes())
    data[(128 * 4 + 4) * 3 + 5] ^= 4  # of rows 12 to 15: inner chunks of four rows
    chunk.put(bytes(data))
    train = store["train"]
    assert isinstance(train.rows, FetchedRows)
    np.testing.assert_array_equal(train.take([0, 11, 16]), rows[[0, 11, 16]])
    with pytest.raises(DamagedError, match="corrupt"):
        train.take([13])


def test_what_is_not_there_gives_one_line(place: str) -> None:
    with pytest.raises(NotAStoreError, match=r"x\.zarr holds no zarr\.json"):
        actstore.open(place)


@pytest.mark.parametrize(
    ("place", "said"), [("ftp://host/x.zarr", "s3://BUCKET/NAME"), ("s3://b/a//x.zarr", "plain name")]
)
def test_a_place_that_is_none(place: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        actstore.open(place)


def test_a_forked_process_is_told_to_spawn(s3: Any, rows: Any) -> None:
    import multiprocessing

    s3.create_bucket("forks")
    train = store_at("s3://forks/x.zarr", rows)["train"]
    train.take([1])
    queue: Any = multiprocessing.get_context("fork").Queue()
    child = multiprocessing.get_context("fork").Process(target=_take, args=(train, queue))
    child.start()
    assert "spawn" in queue.get(timeout=60)
    child.join()


def _take(train: Any, queue: Any) -> None:
    try:
        queue.put(str(train.take([1])))
    except StorageError as error:
        queue.put(str(error))

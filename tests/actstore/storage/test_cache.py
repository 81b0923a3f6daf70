"""The cache of remote chunks: bounded, checked, and worth having."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actstore
from actstore.errors import InvalidInputError
from actstore.storage import bucket_client as buckets
from actstore.storage.object_path import CacheSpec, ChunkCache, ObjectPath, parse_size
from tests.object_storage import CountingProxy, S3Server

CHUNK = 96 * 64 * 2 + 4  # bytes of a cached chunk
_numbers = count()


@pytest.fixture
def rows(random: np.random.Generator) -> Any:
    return random.random((960, 64), dtype=np.float32).astype(np.float16)  # ten chunks


def clear(place: ObjectPath) -> None:
    place.remove_below(place.contents())


def make(name: str, rows: Any) -> str:
    place = f"memory://cache/{name}"
    clear(ObjectPath.parse(place))
    actstore.from_arrays(place, {"train": (rows, np.arange(len(rows)) % 3)}, chunk_rows=96)
    return place


def held(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]


def test_only_what_is_touched_is_kept(rows: Any, tmp_path: Path) -> None:
    train = actstore.open(make("touched", rows), cache=tmp_path)["train"]
    train.take([5, 700])
    assert sorted(path.name.partition("-")[0] for path in held(tmp_path)) == ["0", "7"]
    assert all(path.stat().st_size == CHUNK for path in held(tmp_path))


def test_a_warm_cache_needs_no_chunks_of_the_store(rows: Any, tmp_path: Path) -> None:
    place = make("warm", rows)
    actstore.open(place, cache=tmp_path)["train"].take(np.arange(960))
    clear(ObjectPath.parse(place) / "train/activations/c")
    np.testing.assert_array_equal(actstore.open(place, cache=tmp_path)["train"].take(np.arange(960)), rows)


@pytest.mark.parametrize("limit", [0, 1, 4, 9])
def test_it_stays_within_its_bound(rows: Any, tmp_path: Path, limit: int, random: Any) -> None:
    train = actstore.open(make("bound", rows), cache=tmp_path, cache_bytes=limit * CHUNK)["train"]
    for _ in range(3):
        wanted = random.integers(0, 960, 200)
        np.testing.assert_array_equal(train.take(wanted), rows[wanted])
        np.testing.assert_array_equal(train[100:900], rows[100:900])
    assert len(held(tmp_path)) == limit


def test_other_stores_make_room(rows: Any, tmp_path: Path) -> None:
    first, second = make("first", rows), make("second", rows[::-1])
    actstore.open(first, cache=tmp_path, cache_bytes=12 * CHUNK)["train"].take(np.arange(960))
    train = actstore.open(second, cache=tmp_path, cache_bytes=12 * CHUNK)["train"]
    np.testing.assert_array_equal(train.take(np.arange(960)), rows[::-1])
    assert len(held(tmp_path)) == 12
    assert len([path for path in held(tmp_path) if "second" in str(path)]) == 10


@pytest.mark.parametrize("damage", ["cut", "other crc"])
def test_a_damaged_file_is_fetched_again(rows: Any, tmp_path: Path, damage: str) -> None:
    place = make("damage", rows)
    actstore.open(place, cache=tmp_path)["train"].take([5])
    (file,) = held(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[:100] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    np.testing.assert_array_equal(actstore.open(place, cache=tmp_path)["train"].take([5]), rows[[5]])
    assert file.read_bytes() == data


def test_after_an_append_only_what_changed_is_fetched(rows: Any, tmp_path: Path) -> None:
    place = make("grown", rows[:900])
    actstore.open(place, cache=tmp_path)["train"].take(np.arange(900))
    before = {path.name for path in held(tmp_path)}
    with actstore.open(place).writer("train") as writer:
        writer.append(rows[900:], np.zeros(60, int))
    np.testing.assert_array_equal(actstore.open(place, cache=tmp_path)["train"].take(np.arange(960)), rows)
    assert len({path.name for path in held(tmp_path)} - before) == 1


def test_a_search_index_of_a_remote_store_lies_in_its_cache(rows: Any, tmp_path: Path) -> None:
    from actstore.search.index_files import folder

    train = actstore.open(make("indexed", rows), cache=tmp_path)["train"]
    assert folder(train).is_relative_to(tmp_path)


def test_rows_fetch_little_and_warm_ones_nothing(s3: S3Server, tmp_path: Path, random: Any, monkeypatch: Any) -> None:
    s3.create_bucket("counted")
    rows = random.random((20_000, 256), dtype=np.float32).astype(np.float16)
    place = "s3://counted/x.zarr"
    actstore.from_arrays(place, {"train": (rows, np.zeros(len(rows), int))}, chunk_rows=4096)
    proxy = CountingProxy(s3.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    buckets._connect.cache_clear()  # so that the client goes through the proxy
    try:
        train = actstore.open(place)["train"]
        wanted = random.choice(20_000, 900, replace=False)
        train.rows  # noqa: B018 - opened before it is counted
        proxy.fetched = 0
        np.testing.assert_array_equal(train.take(wanted), rows[wanted])
        assert 900 * 512 < proxy.fetched < 0.15 * rows.nbytes  # 4.5% are the rows; the rest is mostly HTTP headers
        cached = actstore.open(place, cache=tmp_path)["train"]
        cached.take(wanted)
        proxy.fetched = 0
        np.testing.assert_array_equal(cached.take(wanted), rows[wanted])
        assert proxy.fetched == 0
    finally:
        buckets._connect.cache_clear()
        proxy.close()


def test_what_else_lies_in_the_folder_is_left_alone(rows: Any, tmp_path: Path) -> None:
    strange = tmp_path / "my-experiments1" / "run1" / "weights.pt"
    strange.parent.mkdir(parents=True)
    strange.write_bytes(bytes(100))
    train = actstore.open(make("strangers", rows), cache=tmp_path, cache_bytes=2 * CHUNK)["train"]
    np.testing.assert_array_equal(train.take(np.arange(960)), rows)
    assert strange.exists()
    assert len(held(tmp_path)) == 3


def test_a_cache_too_small_for_a_chunk_drops_nothing(rows: Any, tmp_path: Path) -> None:
    actstore.open(make("large", rows), cache=tmp_path)["train"].take([0])
    train = actstore.open(make("small", rows), cache=tmp_path, cache_bytes=CHUNK // 2)["train"]
    np.testing.assert_array_equal(train.take([0]), rows[:1])
    assert len(held(tmp_path)) == 1


def test_a_cache_that_cannot_be_written_is_done_without(rows: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    train = actstore.open(make("useless", rows), cache=tmp_path / "file")["train"]
    with pytest.warns(UserWarning, match="no longer cached"):
        np.testing.assert_array_equal(train.take([5, 700]), rows[[5, 700]])
    np.testing.assert_array_equal(train.take([300]), rows[[300]])


def test_chunks_that_cannot_be_mapped_are_not_cached(rows: Any, tmp_path: Path) -> None:
    place = "memory://cache/odd"
    actstore.from_arrays(place, {"train": (rows, np.zeros(960, int))}, chunk_rows=100)
    with pytest.warns(UserWarning, match="no whole memory pages"):
        np.testing.assert_array_equal(actstore.open(place, cache=tmp_path)["train"].take([5]), rows[[5]])


@given(st.integers(1, 3000), st.sampled_from(["f2", "f4"]))
def test_chunks_of_a_new_store_can_be_mapped(dim: int, dtype: Any) -> None:
    spec = actstore.create(f"memory://cache/{dim}-{dtype}-{next(_numbers)}", classes=["a"], dim=dim, dtype=dtype).spec
    assert spec.chunk_bytes % 4096 == 0
    assert spec.shard_inner_rows
    assert spec.chunk_rows % spec.shard_inner_rows == 0


@given(st.integers(0, 1 << 40))
def test_sizes_are_understood(number: int) -> None:
    assert parse_size(str(number)) == number
    assert parse_size(f"{number % 1000} kB") == (number % 1000) << 10
    assert parse_size(f"{number % 1000}GiB") == (number % 1000) << 30


@pytest.mark.parametrize("text", ["", "many", "-1", "5X", "1e9"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="such as 20G"):
        parse_size(text)


def test_room_is_made_by_last_use(tmp_path: Path) -> None:
    spec = CacheSpec(tmp_path, 3 * 20)
    for number, store in enumerate(("a", "b", "c")):
        cache = ChunkCache(spec, f"memory://x/{store}", "train", [number], 16)
        assert cache.add(0, bytes(16), number)
    assert ChunkCache(spec, "memory://x/a", "train", [0], 16).has(0)  # used again
    assert ChunkCache(spec, "memory://x/d", "train", [3], 16).add(0, bytes(16), 3)
    left = {path.parts[-3].rpartition("-")[0] for path in held(tmp_path)}
    assert left == {"x-a", "x-c", "x-d"}

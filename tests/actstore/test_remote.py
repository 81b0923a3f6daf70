"""Stores in a bucket: everything a local store can do, on moto's S3 server and in memory."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import actstore
from actstore import commit, creation
from actstore.cached import CachedRows
from actstore.chunkfile import crc32c
from actstore.chunkwriter import begin_storing
from actstore.errors import DamagedError, IncompleteError, InvalidInputError, LockedError, NotAStoreError, StorageError
from actstore.objects import ObjectPath
from actstore.ranged import RangedRows
from actstore.repair import repair
from actstore.stream import ClassBatches
from actstore.verify import Fault, verify_store

LAYOUTS: dict[str, dict[str, Any]] = {
    "single rows": {},
    "shards": {"shard_inner_rows": 8},
    "raw": {"shard_inner_rows": 0},
    "blosc": {"codec": "blosc"},
}
_numbers = count()


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    """Where a new store may lie."""
    name = f"bucket-{next(_numbers)}"
    if request.param == "s3":
        request.getfixturevalue("s3").create_bucket(name)
    return f"{request.param}://{name}/x.zarr"


@pytest.fixture
def rows(random: np.random.Generator) -> NDArray[np.float16]:
    return random.random((1000, 64), dtype=np.float32).astype(np.float16)


LABELS = np.arange(1000) % 7
IDS = [f"c{row % 7}/{row}.jpg" for row in range(1000)]


def make(place: str, rows: NDArray[np.float16], **options: Any) -> actstore.ActivationStore:
    return actstore.from_arrays(place, {"train": (rows, LABELS, IDS)}, chunk_rows=96, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cached", [False, True])
def test_rows_come_back(place: str, rows: Any, random: Any, layout: str, cached: bool, tmp_path: Path) -> None:
    make(place, rows, **LAYOUTS[layout])
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


def test_analyses_agree_with_a_local_store(place: str, rows: Any, tmp_path: Path) -> None:
    remote, local = make(place, rows)["train"], make(str(tmp_path / "x.zarr"), rows)["train"]
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


def test_appended_rows_follow(place: str, rows: Any, tmp_path: Path) -> None:
    store = make(place, rows)
    before = actstore.open(place, cache=tmp_path)["train"]
    before.means()
    before.take(np.arange(1000))
    store.add_classes(["new"])
    with store.writer("train") as writer:
        writer.append(rows[:50], ["new"] * 50, [f"n{row}" for row in range(50)])
    np.testing.assert_array_equal(before.take([999, 0]), rows[[999, 0]])  # a reader is not disturbed
    after = actstore.open(place, cache=tmp_path)["train"]
    np.testing.assert_array_equal(after[950:], np.concatenate([rows[950:], rows[:50]]))
    np.testing.assert_allclose(after.means()[7], rows[:50].astype(np.float64).mean(0), rtol=1e-6)
    assert verify_store(store) == []


def test_an_append_in_flight_disturbs_no_cold_cache(place: str, rows: Any, tmp_path: Path) -> None:
    store = make(place, rows)
    before = actstore.open(place, cache=tmp_path)["train"]
    before.take([0])  # the ledger is read, the last chunk is not
    with actstore.open(place, cache=tmp_path / "writer").writer("train", source={"kind": "test"}) as writer:
        writer.append(rows[:8], LABELS[:8], IDS[:8])
        buffer, array = writer._buffer, ObjectPath.parse(place) / "train/activations"
        buffer[writer._filled :] = 0
        begin_storing(array, store.spec, 10, buffer, crc32c(buffer), writer._ledger)[0].finish()  # longer now
        np.testing.assert_array_equal(before.take([999]), rows[[999]])
    np.testing.assert_array_equal(store["train"][990:], np.concatenate([rows[990:], rows[:8]]))


def test_a_commit_that_was_overtaken_changes_nothing(place: str, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(place, rows)
    slow = store.writer("train", source={"kind": "slow"})
    slow.append(rows[:200], LABELS[:200], IDS[:200])
    write = commit.write_labels_and_ids

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(commit, "write_labels_and_ids", write)
        with store.writer("train", source={"kind": "fast"}, restart=True) as fast:
            fast.append(rows[:50], LABELS[:50], IDS[:50])
        return write(*arguments)

    monkeypatch.setattr(commit, "write_labels_and_ids", overtaken)
    with pytest.raises(LockedError):
        slow.commit()
    slow.close()
    assert len(store["train"]) == 1050
    np.testing.assert_array_equal(store["train"][1000:], rows[:50])


def test_of_two_creations_at_once_one_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "require_free", lambda path: None)  # both have looked, and found nothing
    actstore.create(place, classes=["a"], dim=64)
    actstore.create(place, classes=["a"], dim=64)  # the same again, as when an answer is lost
    with pytest.raises(LockedError):
        actstore.create(place, classes=["z"], dim=32)
    assert actstore.open(place).dim == 64


def test_kept_means_are_checked(place: str, rows: Any) -> None:
    store = make(place, rows)
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


def test_a_live_writer_is_not_repaired_away(place: str, rows: Any) -> None:
    store = make(place, rows)
    with store.writer("train", source={"kind": "test"}) as writer:
        fault = Fault("train", "labels", 0, "corrupt", "")
        with pytest.raises(LockedError, match="finish that first"):
            repair(store, [fault])
        writer.append(rows[:5], LABELS[:5], IDS[:5])
    assert len(store["train"]) == 1005


def test_an_interrupted_build_resumes(place: str, rows: Any) -> None:
    store = actstore.create(place, classes=[str(label) for label in range(7)], dim=64, chunk_rows=96)
    writer = store.writer("train", source={"kind": "test"})
    writer.append(rows[:500], LABELS[:500], IDS[:500])
    writer.close()
    with pytest.raises(IncompleteError):
        store["train"]
    with pytest.raises(IncompleteError, match="unfinished build"):
        store.writer("train", source={"kind": "another"})
    with store.writer("train", source={"kind": "test"}) as again:
        position = again.position
        assert position == 480  # five whole chunks
        again.append(rows[position:], LABELS[position:], IDS[position:])
    np.testing.assert_array_equal(store["train"][:], rows)
    assert verify_store(store) == []


def test_a_build_can_be_restarted(place: str, rows: Any) -> None:
    store = make(place, rows)
    writer = store.writer("train", source={"kind": "test"})
    writer.append(rows[:400], LABELS[:400], IDS[:400])
    writer.close()
    store.writer("train", source={"kind": "other"}, restart=True).commit()
    np.testing.assert_array_equal(store["train"][:], rows)
    assert verify_store(store) == []


def test_of_two_writers_the_later_goes_on(place: str, rows: Any) -> None:
    store = actstore.create(place, classes=["a"], dim=64, chunk_rows=96)
    first = store.writer("train")
    first.append(rows[:96])
    first._chunks.drain()
    second = store.writer("train", resume=True)
    second.append(rows[96:300])
    second._chunks.drain()
    with pytest.raises(LockedError, match="another process has begun to write"):
        first.append(rows[500:700])  # would take the place of the other's
        first._chunks.drain()
    first.close()
    second.commit()
    np.testing.assert_array_equal(store["train"][:], rows[:300])
    assert verify_store(store) == []


def test_a_writer_that_was_overtaken_replaces_nothing(place: str, rows: Any) -> None:
    store = actstore.create(place, classes=["a"], dim=64, chunk_rows=96)
    first = store.writer("train")
    with store.writer("train") as second:
        second.append(rows[:96])
    with pytest.raises(LockedError):
        first.append(rows[96:192])
        first.commit()
    first.close()
    np.testing.assert_array_equal(store["train"][:], rows[:96])


def test_classes_added_by_two_at_once_are_all_kept(place: str) -> None:
    store = actstore.create(place, classes=["a"], dim=8)
    other = actstore.open(place)
    store.add_classes(["b"])
    other.add_classes(["c"])
    assert actstore.open(place).classes == ("a", "b", "c")


@pytest.mark.parametrize("layout", ["single rows", "raw"])
def test_a_damaged_chunk_is_named(place: str, rows: Any, layout: str, tmp_path: Path) -> None:
    store = make(place, rows, **LAYOUTS[layout])
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
    store = make(place, rows)
    chunk = ObjectPath.parse(place) / "train/activations/c/0/0"
    data = bytearray(chunk.read_bytes())
    data[(128 * 4 + 4) * 3 + 5] ^= 4  # of rows 12 to 15: inner chunks of four rows
    chunk.put(bytes(data))
    train = store["train"]
    assert isinstance(train.rows, RangedRows)
    np.testing.assert_array_equal(train.take([0, 11, 16]), rows[[0, 11, 16]])
    with pytest.raises(DamagedError, match="corrupt"):
        train.take([13])


def test_what_is_not_there_gives_one_line(place: str) -> None:
    with pytest.raises(NotAStoreError, match=r"x\.zarr holds no zarr\.json"):
        actstore.open(place)


def test_a_bucket_that_vanished(s3: Any, rows: Any) -> None:
    s3.create_bucket("gone")
    writer = actstore.create("s3://gone/x.zarr", classes=["a"], dim=64, chunk_rows=96).writer("train")
    ObjectPath.parse("s3://gone").remove_tree()
    s3._send("DELETE", "gone")
    with pytest.raises(StorageError, match="there is no bucket 'gone'"):
        writer.append(rows)
        writer.commit()
    writer.close()
    with pytest.raises(StorageError, match="there is no bucket 'gone'; create it, or check its name"):
        actstore.open("s3://gone/x.zarr")


@pytest.mark.parametrize(
    ("place", "said"), [("ftp://host/x.zarr", "s3://BUCKET/NAME"), ("s3://b/a//x.zarr", "plain name")]
)
def test_a_place_that_is_none(place: str, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        actstore.open(place)


def test_a_forked_process_is_told_to_spawn(s3: Any, rows: Any) -> None:
    import multiprocessing

    s3.create_bucket("forks")
    train = make("s3://forks/x.zarr", rows)["train"]
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

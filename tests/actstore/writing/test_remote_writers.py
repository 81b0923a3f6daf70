"""Writers of a store in a bucket: interrupted, overtaken, or two at once."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore import store as creation
from actstore.errors import IncompleteError, LockedError, StorageError
from actstore.storage.atomic_file import crc32c
from actstore.storage.object_path import ObjectPath
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import Fault, verify_store
from actstore.writing import commit
from actstore.writing.chunk_writer import begin_storing
from tests.object_storage import IDS, LABELS, store_at


def test_appended_rows_follow(place: str, rows: Any, tmp_path: Path) -> None:
    store = store_at(place, rows)
    before = actstore.open(place, cache=tmp_path)["train"]
    before.means()
    before.take(np.arange(1000))
    store.add_classes(["new"])
    with store.writer("train") as writer:
        writer.append(rows[:50], ["new"] * 50, [f"n{row}" for row in range(50)])
    np.testing.assert_array_equal(before.take([999, 0]), rows[[999, 0]])  # a reader is not disturbed
    after = actstore.open(place, cache=tmp_path)["train"]
    np.testing.assert_array_equal(after[950:], np.concatenate([rows[950:], rows[:50]]))
    np.testing.assert_allclose(after.means()[7], rows[:50].astype(np.float64).mean(0), rtol=6e-5)
    assert verify_store(store) == []


def test_an_append_in_flight_disturbs_no_cold_cache(place: str, rows: Any, tmp_path: Path) -> None:
    store = store_at(place, rows)
    before = actstore.open(place, cache=tmp_path)["train"]
    before.take([0])  # the ledger is read, the last chunk is not
    with actstore.open(place, cache=tmp_path / "writer").writer("train", source={"kind": "test"}) as writer:
        writer.append(rows[:8], LABELS[:8], IDS[:8])
        buffer, array = writer._buffer, ObjectPath.parse(place) / "train/activations"
        buffer[writer._filled :] = 0
        begin_storing(array, store.spec, 10, buffer, crc32c(buffer), writer._ledger)[0].finish()  # longer now
        np.testing.assert_array_equal(before.take([999]), rows[[999]])
    np.testing.assert_array_equal(store["train"][990:], np.concatenate([rows[990:], rows[:8]]))


@pytest.mark.usefixtures("overtaking")
def test_a_commit_that_was_overtaken_changes_nothing(place: str, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_at(place, rows)
    slow = store.writer("train", source={"kind": "slow"})
    slow.append(rows[:200], LABELS[:200], IDS[:200])
    write = commit.write_facts

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(commit, "write_facts", write)
        with store.writer("train", source={"kind": "fast"}, restart=True) as fast:
            fast.append(rows[:50], LABELS[:50], IDS[:50])
        return write(*arguments)

    monkeypatch.setattr(commit, "write_facts", overtaken)
    with pytest.raises(LockedError):
        slow.commit()
    slow.close()
    assert len(store["train"]) == 1050
    np.testing.assert_array_equal(store["train"][1000:], rows[:50])


@pytest.mark.usefixtures("overtaking")
def test_who_is_overtaken_after_the_commit_has_committed(
    place: str, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(place, rows)
    slow, write = store.writer("train", source={"kind": "slow"}), commit.write_attributes
    slow.append(rows[:200], LABELS[:200], IDS[:200])

    def overtaken(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(commit, "write_attributes", write)
        write(*arguments, **options)
        with store.writer("train", source={"kind": "fast"}) as fast:
            fast.append(rows[200:250], LABELS[200:250], IDS[200:250])

    monkeypatch.setattr(commit, "write_attributes", overtaken)
    assert slow.commit().rows == 1200
    np.testing.assert_array_equal(store["train"][1000:], rows[:250])
    assert verify_store(store) == []


def test_of_two_creations_at_once_one_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "require_free", lambda path: None)  # both have looked, and found nothing
    actstore.create(place, classes=["a"], dim=64)
    actstore.create(place, classes=["a"], dim=64)  # the same again, as when an answer is lost
    with pytest.raises(LockedError):
        actstore.create(place, classes=["z"], dim=32)
    assert actstore.open(place).dim == 64


def test_a_live_writer_is_not_repaired_away(place: str, rows: Any) -> None:
    store = store_at(place, rows)
    with store.writer("train", source={"kind": "test"}) as writer:
        fault = Fault("train", "labels", 0, "corrupt", "")
        with pytest.raises(LockedError, match="finish that first"):
            repair_faults(store, [fault])
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
        assert position == 500  # five whole chunks, and some of the sixth
        again.append(rows[position:], LABELS[position:], IDS[position:])
    np.testing.assert_array_equal(store["train"][:], rows)
    assert verify_store(store) == []


def test_a_build_can_be_restarted(place: str, rows: Any) -> None:
    store = store_at(place, rows)
    writer = store.writer("train", source={"kind": "test"})
    writer.append(rows[:400], LABELS[:400], IDS[:400])
    writer.close()
    store.writer("train", source={"kind": "other"}, restart=True).commit()
    np.testing.assert_array_equal(store["train"][:], rows)
    assert verify_store(store) == []


def test_of_two_writers_the_later_is_refused(place: str, rows: Any) -> None:
    store = store_at(place, rows)
    first = store.writer("train", source={"kind": "first"})
    for _ in range(2):
        with pytest.raises(LockedError, match=r"another process is writing to .*train; wait for it to end"):
            store.writer("train", source={"kind": "second"})
    first.append(rows[:50], LABELS[:50], IDS[:50])
    first.commit()
    with store.writer("train", source={"kind": "second"}) as second:  # what the sentence said
        second.append(rows[50:80], LABELS[50:80], IDS[50:80])
    np.testing.assert_array_equal(store["train"][1000:], rows[:80])
    assert verify_store(store) == []


def test_a_writer_that_was_dropped_is_none(place: str, rows: Any) -> None:
    store = store_at(place, rows)
    writer = store.writer("train", source={"kind": "test"})
    writer.append(rows[:50], LABELS[:50], IDS[:50])
    writer.flush()
    del writer
    gc.collect()
    with store.writer("train", source={"kind": "test"}) as again:
        assert again.position == 1050


@pytest.mark.usefixtures("overtaking")
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


@pytest.mark.usefixtures("overtaking")
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


def test_a_bucket_that_vanished(s3: Any, rows: Any) -> None:
    s3.create_bucket("gone")
    writer = actstore.create("s3://gone/x.zarr", classes=["a"], dim=64, chunk_rows=96).writer("train")
    bucket = ObjectPath.parse("s3://gone")
    bucket.remove_below(bucket.contents())
    s3._send("DELETE", "gone")
    with pytest.raises(StorageError, match="there is no bucket 'gone'"):
        writer.append(rows)
        writer.commit()
    writer.close()
    with pytest.raises(StorageError, match="there is no bucket 'gone'; create it, or check its name"):
        actstore.open("s3://gone/x.zarr")

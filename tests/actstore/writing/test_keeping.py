"""Rows of a chunk that is not full yet are durable too: by time, by interrupt, at every moment of a kill."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from actstore.errors import IncompleteError, InvalidInputError, LockedError, StorageError
from actstore.upkeep.verify import verify_store
from actstore.writing import chunk_writer, split_writer
from tests.object_storage import IDS, LABELS
from tests.store_files import files

SOURCE: dict[str, Any] = {"path": "x"}
VALUES = np.random.default_rng(5).random((400, 8), dtype=np.float32).astype(np.float16)


def new_store(path: str | Path, chunk_rows: int = 64, dim: int = 8) -> actstore.ActivationStore:
    return actstore.create(path, classes=[str(label) for label in range(7)], dim=dim, chunk_rows=chunk_rows)


def part(start: int, stop: int) -> tuple[Any, Any, Any]:
    return VALUES[start:stop], LABELS[start:stop], IDS[start:stop]


class Killed(BaseException):
    """The process is no more: nothing that it does after this reaches the disk."""


def killed(*_: object) -> None:
    raise Killed


def refused(*_: object) -> None:
    raise StorageError("the disk is full")


@contextmanager
def killed_at(step: int, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever changes a file counts as a step; from `step` on none happens, and of its write only a half."""
    steps = [step]

    def mortal(change: Any) -> Any:
        def attempt(*arguments: Any, **named: Any) -> Any:
            steps[0] -= 1
            if steps[0] == 0 and change is write:
                write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            if steps[0] <= 0:
                raise Killed
            return change(*arguments, **named)

        return attempt

    write = os.write
    with patch.context() as inner:
        inner.setattr(os, "fsync", lambda descriptor: None)  # these kills spare the file system
        for owner, name in (
            (os, "write"), (os, "fsync"), (os, "ftruncate"), (Path, "replace"), (Path, "unlink"), (shutil, "rmtree"),
        ):  # fmt: skip
            inner.setattr(owner, name, mortal(getattr(owner, name)))
        yield


def write_from(writer: Any, blocks: list[int], total: int) -> None:
    """Blocks of those sizes, in turn; a negative one is a flush."""
    sizes = iter([*blocks] * total)
    while writer.position < total:
        size = next(sizes)
        if size < 0:
            writer.flush()
        else:
            writer.append(*part(writer.position, min(writer.position + size, total)))


BLOCKS = st.lists(st.integers(1, 40) | st.just(-1), min_size=1, max_size=6).filter(lambda blocks: max(blocks) > 0)


@given(
    blocks=BLOCKS,
    kills=st.lists(st.integers(1, 40), max_size=4),
    total=st.integers(0, 90),
    more=st.integers(0, 60),
    chunk=st.sampled_from([7, 32, 300]),
)
@settings(max_examples=25, deadline=None)
def test_killed_at_any_step_the_resumed_store_is_byte_identical(
    blocks: list[int], kills: list[int], total: int, more: int, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, patch = tmp_path_factory.mktemp("any"), pytest.MonkeyPatch()
    whole, killed = (new_store(folder / name, chunk) for name in ("whole.zarr", "killed.zarr"))
    for end, source in ((total, SOURCE), (total + more, {"path": "more"})):  # a build, and an append to it
        with whole.writer("train", source=source) as writer:
            writer.append(*part(writer.position, end))
        for step in kills:
            with killed_at(step, patch), suppress(Killed), killed.writer("train", source=source) as writer:
                write_from(writer, blocks, end)
        if "train" not in killed or not killed.splits["train"].complete or killed.splits["train"].rows < end:
            with killed.writer("train", source=source) as writer:
                write_from(writer, blocks, end)
        killed.remove_leftovers("train")
    assert files(killed.path) == files(whole.path)


@given(blocks=BLOCKS, step=st.integers(1, 80), chunk=st.sampled_from([7, 32, 300]))
@settings(max_examples=20, deadline=None)
def test_what_was_flushed_survives_every_kill(
    blocks: list[int], step: int, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store, flushed, patch = new_store(tmp_path_factory.mktemp("any") / "x.zarr", chunk), 0, pytest.MonkeyPatch()
    writer = store.writer("train", source=SOURCE)
    with killed_at(step, patch), suppress(Killed):
        for size in blocks:
            if size > 0:
                writer.append(*part(writer.position, min(writer.position + size, 400)))
            writer.flush()
            flushed = writer.position
    with killed_at(0, patch), suppress(Killed):
        writer.close()
    again = store.writer("train", source=SOURCE)
    assert again.position >= flushed
    assert list(again.ids()) == IDS[: again.position]
    assert again.last_id() == (IDS[again.position - 1] if again.position else None)
    again.commit()
    np.testing.assert_array_equal(store["train"][:], VALUES[: again.position])
    assert verify_store(store) == []


@pytest.mark.usefixtures("overtaking")
def test_rows_are_kept_while_the_source_takes_its_time(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No further append comes: the thread alone keeps them."""
    monkeypatch.setattr(split_writer, "SECONDS", 0.04)
    store = new_store(place)
    writer = store.writer("train", source=SOURCE)
    for start, stop in ((0, 10), (10, 80), (80, 100)):
        writer.append(*part(start, stop))
        patience = time.monotonic() + 60
        while writer._kept < stop and time.monotonic() < patience:
            time.sleep(0.01)
        assert writer._kept == stop
    writer._stop_timer()  # a kill: nothing is closed
    again = store.writer("train", source=SOURCE) if "://" in str(place) else None
    assert again is not None
    assert again.position == 100
    again.append(*part(100, 300))
    again.commit()
    np.testing.assert_array_equal(store["train"][:], VALUES[:300])
    assert list(store["train"].ids) == IDS[:300]
    assert not list((store.path / "train/activations/pending").iterdir())


def test_a_fast_source_writes_its_rows_once(tmp_path: Path) -> None:
    with new_store(tmp_path / "x.zarr").writer("train") as writer:
        for start in range(0, 400, 40):
            writer.append(*part(start, start + 40))
            assert not list(writer._pending.path.glob("open-*"))


def test_kept_rows_go_when_their_chunk_is_whole(tmp_path: Path) -> None:
    with new_store(tmp_path / "x.zarr").writer("train") as writer:
        for start in range(0, 60, 10):
            writer.append(*part(start, start + 10))
            writer.flush()
        assert [file.name for file in writer._pending.path.glob("open-*")] == ["open-0.npz"]
        writer.append(*part(60, 70))
        writer.flush()
        assert [file.name for file in writer._pending.path.glob("open-*")] == ["open-64.npz"]


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "empty", "other"])
def test_damaged_rows_of_an_open_chunk_are_asked_for_again(tmp_path: Path, damage: str) -> None:
    store = new_store(tmp_path / "x.zarr", 64)
    writer = store.writer("train", source=SOURCE)
    for start in range(0, 100, 25):
        writer.append(*part(start, start + 25))
        writer.flush()
    writer.close()
    file = store.path / "train/activations/pending/open-64.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "cut":
        file.write_bytes(content[:-10])
    elif damage == "flip":
        file.write_bytes(content)
    elif damage == "gone":
        file.unlink()
    elif damage == "empty":
        file.write_bytes(b"")
    else:  # sound rows, but longer ones
        other = new_store(tmp_path / "y.zarr", 64, dim=16).writer("train", source=SOURCE)
        other.append(np.ones((100, 16)), *part(0, 100)[1:])
        other.close()
        shutil.copy(tmp_path / "y.zarr/train/activations/pending/open-64.npz", file)
    with store.writer("train", source=SOURCE) as again:
        assert again.position == 64
        again.append(*part(64, 200))
    np.testing.assert_array_equal(store["train"][:], VALUES[:200])


def test_kept_rows_of_an_append_are_not_taken_for_leftovers(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train", source=SOURCE) as writer:
        writer.append(*part(0, 70))
    with pytest.raises(RuntimeError), store.writer("train", source={"path": "more"}) as writer:
        writer.append(*part(70, 90))
        raise RuntimeError("stop")
    store.remove_leftovers("train")
    with pytest.raises(IncompleteError, match="unfinished build from more"):
        store.writer("train", source={"path": "other"})
    with store.writer("train", source={"path": "more"}) as writer:
        assert writer.position == 90
        writer.append(*part(90, 100))
    np.testing.assert_array_equal(store["train"][:], VALUES[:100])
    with store.writer("train", source={"path": "other"}, restart=True) as writer:
        assert writer.position == 100


def test_damaged_rows_of_an_append_are_leftovers(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train", source=SOURCE) as writer:
        writer.append(*part(0, 70))
    writer = store.writer("train", source={"path": "more"})
    writer.append(*part(70, 90))
    writer.close()
    (store.path / "train/activations/pending/open-70.npz").write_bytes(b"")
    with store.writer("train", source={"path": "other"}) as writer:
        assert writer.position == 70
        writer.append(*part(100, 110))
    np.testing.assert_array_equal(store["train"][70:], VALUES[100:110])


def keep_beyond_a_failed_chunk(store: actstore.ActivationStore, patch: pytest.MonkeyPatch) -> Path:
    """Rows 0 to 10 in chunks of 8: those from 8 on are kept while the chunk before them is on its way, which fails."""
    may_fail = threading.Event()

    def fail(*_: object) -> None:
        may_fail.wait(60)
        raise StorageError("the disk is full")

    with patch.context() as inner:
        inner.setattr(chunk_writer, "begin_storing", fail)
        writer = store.writer("train", source=SOURCE)
        writer.append(*part(0, 11))
        writer._keep()
        may_fail.set()
        with pytest.raises(StorageError):
            writer.flush()
    with killed_at(0, patch), suppress(Killed):
        writer.close()
    file = Path(store.path) / "train/activations/pending/open-8.npz"
    assert file.exists()
    return file


def test_rows_kept_beyond_a_failed_chunk_never_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path / "x.zarr", 8)
    keep_beyond_a_failed_chunk(store, monkeypatch)
    writer = store.writer("train", source=SOURCE)
    assert writer.position == 0
    writer.append(*part(100, 108))
    writer._chunks.drain()
    writer.append(*part(108, 110))
    with killed_at(0, monkeypatch), suppress(Killed):
        writer.close()
    with store.writer("train", source=SOURCE) as writer:
        assert writer.position == 8
        writer.append(*part(108, 130))
    np.testing.assert_array_equal(store["train"][:], VALUES[100:130])


@pytest.mark.parametrize("is_late", [False, True])
def test_rows_kept_beyond_a_commit_never_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """The commit ends where they begin, and is killed before it tidies up. is_late: they are there until it begins."""
    store = new_store(tmp_path / "x.zarr", 8)
    file = keep_beyond_a_failed_chunk(store, monkeypatch)
    content = file.read_bytes()
    writer = store.writer("train", source=SOURCE)
    writer.append(*part(100, 108))
    if is_late:
        file.write_bytes(content)
    with monkeypatch.context() as patch:
        patch.setattr(chunk_writer.Pending, "remove", killed)
        with pytest.raises(Killed):
            writer.commit()
        with suppress(Killed):
            writer.close()
    assert store.splits["train"].complete
    with store.writer("train", source={"path": "more"}) as writer:
        assert writer.position == 8
        writer.append(*part(108, 120))
    np.testing.assert_array_equal(store["train"][:], VALUES[100:120])


def test_nothing_is_kept_once_a_chunk_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_writer, "begin_storing", refused)
    writer = new_store(tmp_path / "x.zarr", 8).writer("train", source=SOURCE)
    with pytest.raises(StorageError):
        writer.append(*part(0, 11))
        writer._chunks.drain()
    writer._keep()
    for _ in range(2):
        with pytest.raises(StorageError):  # each time: the rows are not durable
            writer.flush()
    writer.close()
    assert not list(writer._pending.path.glob("open-*"))


def test_restart_discards_kept_rows(tmp_path: Path) -> None:
    store, fresh = new_store(tmp_path / "x.zarr"), new_store(tmp_path / "fresh.zarr")
    writer = store.writer("train")
    writer.append(*part(0, 30))
    writer.close()
    with pytest.raises(IncompleteError, match="30 rows of an interrupted build"):
        store.writer("train")
    for target, options in ((store, {"restart": True}), (fresh, {})):
        with target.writer("train", **options) as writer:
            writer.append(*part(50, 70))
    assert files(store.path) == files(fresh.path)


def test_rows_before_a_refused_one_are_kept_by_age_alone(tmp_path: Path) -> None:
    """Mended, such a source is another one: it should not have to say that it begins anew."""
    store = new_store(tmp_path / "x.zarr")
    with pytest.raises(InvalidInputError), store.writer("train") as writer:
        writer.append(*part(0, 30))
        writer.append(np.full((1, 8), np.nan), [0], ["n"])
    with store.writer("train") as writer:
        assert writer.position == 0


def test_a_writer_that_is_closed_says_so(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    with store.writer("train") as writer:
        writer.append(*part(0, 3))
    for call in (lambda: writer.append(*part(3, 5)), writer.commit, writer.flush):
        with pytest.raises(InvalidInputError, match=r"this writer of .* is closed; open another"):
            call()
    assert writer.position == 3
    other = store.writer("val")
    other.close()
    other.close()
    with pytest.raises(InvalidInputError, match="is closed"):
        other.append(*part(0, 1))


@pytest.mark.usefixtures("overtaking")
def test_what_the_thread_could_not_keep_is_raised_by_the_next_call(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_writer, "SECONDS", 0.04)
    store = new_store(place)
    first = store.writer("train", source=SOURCE)
    second = store.writer("train", source=SOURCE)  # overtakes it
    first.append(*part(0, 10))
    assert first._timer is not None
    first._timer.join(60)
    with pytest.raises(LockedError, match="another process has begun to write"):
        first.append(*part(10, 20))
    with suppress(LockedError):
        first.close()
    second.append(*part(0, 20))
    second.commit()
    np.testing.assert_array_equal(store["train"][:], VALUES[:20])


INTERRUPTED = """
import sys, time, numpy as np, actstore
store = actstore.open(sys.argv[1])
with store.writer("train", source={"path": "x"}) as writer:
    writer.append(np.ones((20, 8)), [0] * 20, [str(row) for row in range(20)])
    print("go", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_the_rows_at_once(tmp_path: Path, number: signal.Signals) -> None:
    store = new_store(tmp_path / "x.zarr")
    command = [sys.executable, "-c", INTERRUPTED, str(store.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(number)
        _, said = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    writer = store.writer("train", source=SOURCE)
    assert writer.position == 20
    writer.close()

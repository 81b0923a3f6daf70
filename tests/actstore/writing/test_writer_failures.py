"""Writers that fail, are interrupted or killed, and disks that are full: what is kept and how it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import IncompleteError, StorageError
from tests.store_files import files


def new_store(path: Path, **options: Any) -> actstore.ActivationStore:
    return actstore.create(path, **{"classes": ["a", "b", "c"], "dim": 64, "chunk_rows": 32, **options})


def test_a_build_goes_on_however_its_folder_was_typed(tmp_path: Path) -> None:
    store, values = new_store(tmp_path / "x.zarr"), np.ones((5, 64), np.float32)
    with pytest.raises(RuntimeError), store.writer("train", source={"kind": "images", "path": "photos/"}) as writer:
        writer.append(values, [0] * 5, list("abcde"))
        raise RuntimeError("stop")
    with pytest.raises(IncompleteError, match="photos"):
        store.writer("train", source={"kind": "images", "path": "pictures"})
    with store.writer("train", source={"kind": "images", "path": "photos"}) as writer:
        assert writer.position == 5


def test_an_error_keeps_the_rows_so_far_and_resume_is_byte_identical(tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((100, 64), dtype=np.float32)
    labels, ids = np.arange(100) % 3, [f"é{row}.jpg" for row in range(100)]
    broken, whole = new_store(tmp_path / "broken.zarr"), new_store(tmp_path / "whole.zarr")
    with pytest.raises(RuntimeError, match="stop"), broken.writer("train") as writer:
        writer.append(values[:70], labels[:70], ids[:70])
        raise RuntimeError("stop")
    with pytest.raises(IncompleteError, match="not complete"):
        broken["train"]
    with pytest.raises(IncompleteError, match="70 rows of an interrupted build; go on with row 70 and resume=True"):
        broken.writer("train")  # a program that starts again at row 0 must not add its rows twice
    with broken.writer("train", resume=True) as writer:
        assert writer.position == 70  # two whole chunks of 32, and some of the third
        writer.append(values[70:], labels[70:], ids[70:])
    with whole.writer("train") as writer:
        writer.append(values, labels, ids)
    assert files(broken.path) == files(whole.path)


def test_an_interrupted_append_leaves_the_old_split_readable(make_store: Any) -> None:
    store = make_store(rows=100)
    before = store["train"].content
    with pytest.raises(RuntimeError), store.writer("train", source={"path": "more"}) as writer:
        writer.append(np.ones((200, 64)), np.zeros(200, int), [f"m/{row}" for row in range(200)])
        raise RuntimeError("stop")
    assert store["train"].content == before
    np.testing.assert_array_equal(store["train"][:], store.values)
    with pytest.raises(IncompleteError, match="unfinished build from more, this one is from other"):
        store.writer("train", source={"path": "other"})
    with store.writer("train", source={"path": "other"}, restart=True) as writer:
        assert writer.position == 100
        writer.append(np.full((5, 64), 3), np.zeros(5, int), [f"o/{row}" for row in range(5)])
    np.testing.assert_array_equal(store["train"][:], np.concatenate([store.values, np.full((5, 64), 3)]))
    from actstore.upkeep.verify import verify_store

    assert verify_store(store) == []


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store(tmp_path / "x.zarr")
    real_write, budget = os.write, [20_000]

    def write(descriptor: int, data: Any) -> int:
        budget[0] -= len(data)
        if budget[0] < 0:
            raise OSError(28, "No space left on device")
        return real_write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(StorageError, match=r"cannot write .*: the disk is full"), store.writer("train") as writer:
            writer.append(np.ones((500, 64)))
    assert not list(store.path.rglob("*.part"))
    with store.writer("train", resume=True) as writer:
        writer.append(np.ones((500 - writer.position, 64)))
    np.testing.assert_array_equal(store["train"][:], np.ones((500, 64)))


WRITE = """
import sys, numpy as np, actstore
store = actstore.open(sys.argv[1])
values = np.random.default_rng(0).random((3000, 64), dtype=np.float32)
with store.writer("train", source={"path": "x"}) as writer:
    print("go", flush=True)
    for start in range(writer.position, 3000, 50):
        part = slice(start, min(start + 50, 3000))
        writer.append(values[part], np.arange(3000)[part] % 3, [f"{row}.jpg" for row in range(3000)[part]])
"""


@pytest.mark.slow
def test_killed_at_random_moments_the_resumed_store_is_byte_identical(tmp_path: Path) -> None:
    """A smaller sister of tests/bench/soak.py, which kills imports a thousand times."""
    new_store(tmp_path / "whole.zarr")
    subprocess.run([sys.executable, "-c", WRITE, tmp_path / "whole.zarr"], check=True, stdout=subprocess.DEVNULL)
    new_store(tmp_path / "killed.zarr")
    random = np.random.default_rng(0)
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", WRITE, tmp_path / "killed.zarr"], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(random.uniform(0, 0.15))
            child.send_signal(signal.SIGKILL)
    subprocess.run([sys.executable, "-c", WRITE, tmp_path / "killed.zarr"], check=True, stdout=subprocess.DEVNULL)
    assert files(tmp_path / "killed.zarr") == files(tmp_path / "whole.zarr")


def test_a_ledger_line_cut_short_by_a_full_disk_is_not_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real_write = new_store(tmp_path / "x.zarr"), os.write

    def write(descriptor: int, data: Any) -> int:
        if bytes(data[:12]) == b'{"chunk": 2,':
            real_write(descriptor, bytes(data[:5]))
            raise OSError(28, "No space left on device")
        return real_write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with (
            pytest.raises(StorageError, match="the disk is full"),
            store.writer("train", source={"kind": "x"}) as writer,
        ):
            writer.append(np.ones((100, 64)))
    with store.writer("train", source={"kind": "x"}) as writer:
        assert writer.position == 64
        writer.append(np.ones((36, 64)))
    assert len(store["train"]) == 100


def test_a_dropped_writer_lets_go_of_the_lock(tmp_path: Path) -> None:
    store = new_store(tmp_path / "x.zarr")
    writer = store.writer("train")
    del writer
    with store.writer("train") as again:
        again.append(np.ones((1, 64)))
    assert len(store["train"]) == 1


def test_restart_leaves_nothing_of_the_first_attempt(tmp_path: Path) -> None:
    store, fresh = new_store(tmp_path / "x.zarr"), new_store(tmp_path / "fresh.zarr")
    with pytest.raises(RuntimeError), store.writer("train") as writer:
        writer.append(np.ones((170, 64)))
        raise RuntimeError("stop")
    for target, options in ((store, {"restart": True}), (fresh, {})):
        with target.writer("train", **options) as writer:
            writer.append(np.full((10, 64), 3))
    assert files(store.path) == files(fresh.path)


def test_a_split_that_lost_its_metadata_is_not_built_over(tmp_path: Path) -> None:
    from actstore.errors import DamagedError
    from actstore.upkeep.verify import verify_store

    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (np.ones((50, 8)), None)})
    (store.path / "train/zarr.json").unlink()
    with pytest.raises(DamagedError, match=r"lost its zarr\.json"):
        store.writer("train")
    (fault,) = verify_store(store)
    assert fault.kind == "metadata"

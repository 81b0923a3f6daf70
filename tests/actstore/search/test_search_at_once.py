"""Two that make, extend, remove or open an index at once: one answer, and never a wrong one."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import actstore
from actstore.compute.tensors import one_thread
from actstore.errors import DamagedError, LockedError, ReplacedError
from actstore.search import BoundedSearch, ExactSearch, bounded, index_files, plan
from actstore.search.approximate import ApproximateSearch
from actstore.search.index_files import find, find_loaded, folder, load_tensors, publish, save_cached
from actstore.search.indexing import keep_index
from actstore.upkeep.copies import rechunk
from actstore.upkeep.verify import verify_store

pytestmark = pytest.mark.numeric
ROWS, MORE, DIM = 2000, 300, 48


def values_of(seed: int, rows: int) -> NDArray[np.float16]:
    return np.random.default_rng(seed).standard_normal((rows, DIM)).astype(np.float16)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(plan, "choose_widths", lambda *_: (16, 24))
    monkeypatch.setattr(bounded, "_FEWEST", 100)
    with one_thread():
        yield actstore.from_arrays(tmp_path / "x.zarr", {"train": (values_of(0, ROWS), None)})


def grow(store: Any, seed: int = 7) -> Any:
    with store.writer("train") as writer:
        writer.append(values_of(seed, MORE))
    return actstore.open(store.path)["train"]


def assert_right(store: Any, method: str = "auto") -> None:
    split, queries = actstore.open(store.path)["train"], values_of(3, 20).astype(np.float32)
    np.testing.assert_array_equal(split.search(queries, 4, method=method)[1], ExactSearch(split).search(queries, 4)[1])


@pytest.mark.parametrize("kind", ["bounded", "ivf"])
def test_a_second_build_is_refused_while_the_first_is_under_way(store: Any, kind: str) -> None:
    def build(split: Any, progress: Any = None) -> None:
        if kind == "bounded":
            BoundedSearch.build(split, progress)
        else:
            keep_index(split, kind, progress=progress)

    build(store["train"])
    split, refusals = grow(store), []

    def second(_: int) -> None:
        with pytest.raises(LockedError, match=kind) as refused:
            build(actstore.open(store.path)["train"])
        refusals.append(refused)

    build(split, second)
    assert refusals
    found = find(split, kind)
    assert found is not None
    assert found.rows == ROWS + MORE
    assert not [path.name for path in folder(split).iterdir() if path.name.startswith(f".{kind}.json")]
    assert verify_store(store) == []
    if kind == "bounded":
        assert_right(store)


def test_without_locks_two_still_have_files_of_their_own(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    BoundedSearch.build(store["train"])
    split = grow(store)
    monkeypatch.setattr(plan, "building", lambda *_: threading.Lock())
    nested: list[BoundedSearch] = []

    def second(_: int) -> None:
        if not nested:
            nested.append(BoundedSearch.build(actstore.open(store.path)["train"]))

    first = BoundedSearch.build(split, second)
    for engine in (first, *nested):
        np.testing.assert_array_equal(
            engine.search(values_of(3, 20).astype(np.float32), 4)[1],
            ExactSearch(split).search(values_of(3, 20).astype(np.float32), 4)[1],
        )
    assert verify_store(store) == []
    assert_right(store)


def test_what_is_mapped_is_never_written_to(store: Any) -> None:
    engine = BoundedSearch.build(store["train"])
    before = {name: getattr(engine.levels, name).clone() for name in ("first", "second", "factors")}
    BoundedSearch.build(store["train"], again=True)  # the very same bytes, under the same name
    BoundedSearch.build(grow(store))
    for name, values in before.items():
        np.testing.assert_array_equal(getattr(engine.levels, name), values)


def test_different_data_have_different_names(store: Any) -> None:
    split = store["train"]
    names = set()
    for value in (1.0, 2.0):
        save_cached(split, "other", {"x": torch.full((3,), value)})
        (data,) = folder(split).glob("other.*.safetensors")
        names.add(data.name)
    assert len(names) == 2


def test_what_a_killed_process_left_is_written_anew_and_what_others_put_there_stays(store: Any) -> None:
    split = store["train"]
    folder(split).mkdir(parents=True)
    left, others = folder(split) / ".norms.part", folder(split) / "norms.txt"
    for path in (left, others):
        path.write_bytes(b"half of something much longer" * ROWS)
    save_cached(split, "norms", {"norms": torch.ones(ROWS)})
    assert [path.exists() for path in (left, others)] == [False, True]
    assert find(split, "norms") is not None
    index_files.remove(split, "norms")
    assert [path.name for path in folder(split).glob("*norms*")] == ["norms.txt"]


@pytest.mark.parametrize("refused", [False, True])
def test_of_two_who_publish_at_once_neither_writes_to_the_file_of_the_other(store: Any, refused: bool) -> None:
    """The second begins while the first has the file open; the first may also fail and take its file away."""
    split, begun, ended = store["train"], threading.Event(), threading.Event()

    def write_slowly(path: Path) -> None:
        path.write_bytes(b"first" * 100)
        begun.set()
        assert not ended.wait(0.3)  # the second waits for its turn
        if refused:
            raise OSError("no more")
        assert path.read_bytes() == b"first" * 100

    def publish_second() -> None:
        begun.wait()
        publish(split, "norms", ".safetensors", {}, lambda path: path.write_bytes(b"second"))
        ended.set()

    second = threading.Thread(target=publish_second)
    second.start()
    with pytest.raises(OSError, match="no more") if refused else nullcontext():
        publish(split, "norms", ".safetensors", {}, write_slowly)
    second.join()
    found = find(split, "norms")
    assert found is not None
    assert found.data.read_bytes() == b"second"
    assert not list(folder(split).glob(".norms*"))


def test_who_is_done_leaves_the_file_that_the_next_has_begun(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    split, next_one = store["train"], folder(store["train"]) / ".norms.part"
    write = index_files.write_atomic

    def begin_next(*arguments: Any) -> int:  # the first has its name by now, so the next need not wait
        next_one.write_bytes(b"half")
        return write(*arguments)

    monkeypatch.setattr(index_files, "write_atomic", begin_next)
    save_cached(split, "norms", {"norms": torch.ones(ROWS)})
    assert next_one.read_bytes() == b"half"


def test_one_of_fewer_rows_never_takes_the_place_of_one_of_more(store: Any) -> None:
    old, new = store["train"], grow(store)
    save_cached(new, "norms", {"norms": torch.ones(len(new))})
    save_cached(old, "norms", {"norms": torch.ones(len(old))})
    found = find(new, "norms")
    assert found is not None
    assert found.rows == len(new)
    with pytest.raises(ReplacedError, match="open the split again"):
        publish(old, "norms", ".safetensors", {}, lambda path: path.write_bytes(b"x") and None)  # type: ignore[func-returns-value]
    rechunk(store.path, None, 256)
    with pytest.raises(ReplacedError, match="open it again"):
        publish(new, "norms", ".safetensors", {}, lambda path: path.write_bytes(b"x") and None)  # type: ignore[func-returns-value]
    assert not list(folder(new).glob(".norms*"))


def test_an_index_replaced_while_it_is_opened_is_opened_anew(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    BoundedSearch.build(store["train"])
    split = grow(store)
    checksum, replaced = index_files.file_checksum, []

    def replace(*_: Any) -> Any:
        if not replaced:
            replaced.append(True)
            BoundedSearch.build(split)
        return checksum(*_)

    monkeypatch.setattr(index_files, "file_checksum", replace)  # the data goes between the look at it and its reading
    found = find(split, "bounded")
    assert found is not None
    assert found.rows == ROWS + MORE

    replaced.clear()
    split = grow(store, 8)

    def load(path: Path) -> Any:
        if not replaced:
            replaced.append(True)
            BoundedSearch.build(split)
        return load_tensors(path)

    monkeypatch.setattr(index_files, "file_checksum", checksum)
    loaded = find_loaded(split, "bounded", load)
    assert loaded is not None
    assert loaded[0].rows == len(split)
    next(folder(split).glob("bounded.*.safetensors")).unlink()
    with pytest.raises(DamagedError, match="names a file that is gone"):
        find(split, "bounded")
    BoundedSearch.build(split)  # the command that the message names
    assert_right(store)


def test_a_damaged_approximate_index_is_built_again(store: Any) -> None:
    keep_index(store["train"], "ivf")
    data = next(folder(store["train"]).glob("ivf.*.faiss"))
    data.write_bytes(data.read_bytes()[:-9])
    with pytest.raises(DamagedError):
        ApproximateSearch.load(store["train"], "ivf")
    keep_index(store["train"], "ivf")
    assert ApproximateSearch.load(store["train"], "ivf").covered == ROWS

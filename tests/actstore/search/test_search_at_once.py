"""Two that make, extend, remove or open an index at once: one answer, and never a wrong one."""

from __future__ import annotations

import os
import platform
import threading
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
from actstore.storage.locks import own_name
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


def test_what_dead_processes_left_is_removed_and_what_others_write_is_not(store: Any) -> None:
    split = store["train"]
    folder(split).mkdir(parents=True)
    note = folder(split) / "norms.json"
    mine = own_name(note)
    dead = mine.with_name(mine.name.replace(f".{os.getpid()}.", ".4194304."))  # above the largest number of a process
    elsewhere = dead.with_name(dead.name.replace(platform.node(), "another-machine"))
    for path in (mine, dead, elsewhere, note.with_name("norms.txt")):
        path.write_bytes(b"half")
    save_cached(split, "norms", {"norms": torch.ones(ROWS)})
    assert [path.exists() for path in (mine, dead, elsewhere, note.with_name("norms.txt"))] == [True, False, True, True]
    index_files.remove(split, "norms")
    assert [path.name for path in folder(split).glob("norms*")] == ["norms.txt"]


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
    assert not list(folder(new).glob(".norms.json*"))


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

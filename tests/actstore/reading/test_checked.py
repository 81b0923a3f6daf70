"""Damaged chunks are named by every pass that reads whole chunks, and by `take` where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import DamagedError
from actstore.search.indexing import build_index
from actstore.search.plan import build_levels
from actstore.search.table import RowTable
from actstore.split import Split
from actstore.tables.exporting import export

LAYOUTS: list[dict[str, Any]] = [{}, {"chunk_rows": 91}, {"codec": "blosc"}, {"shard_inner_rows": 12}]
CHUNK = 4


def flip(file: Path, place: int = 100) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 4
    file.write_bytes(data)


def chunk_file(store: actstore.ActivationStore, chunk: int = CHUNK) -> Path:
    return Path(str(store.path), "train/activations/c", str(chunk), "0")


PASSES: dict[str, Callable[[Split, Path], Any]] = {
    "means": lambda split, _: split.statistics(),
    "export": lambda split, place: export(split, place / "x.npy"),
    "export of a range": lambda split, place: export(split, place / "x.npy", np.arange(300, 500)),
    "export of some rows": lambda split, place: export(split, place / "x.npy", [5, 385, 3]),
    "first exact search": lambda split, _: split.search(np.ones((1, split.dim), np.float32), 3),
    "bounded index": lambda split, _: build_levels(RowTable(split)),
    "approximate index": lambda split, _: build_index(split, "ivf", lists=4),
}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", PASSES)
def test_passes_over_whole_chunks_name_a_damaged_one(
    make_store: Any, tmp_path: Path, name: str, layout: dict[str, Any]
) -> None:
    store = make_store(**layout)
    flip(chunk_file(store))
    with pytest.raises(DamagedError, match="actstore verify") as caught:
        PASSES[name](store["train"], tmp_path)
    assert str(chunk_file(store)) in str(caught.value)
    assert not (tmp_path / "x.npy").exists()


def test_the_message_names_split_chunk_file_and_what_to_do(make_store: Any) -> None:
    store = make_store()
    flip(chunk_file(store))
    with pytest.raises(DamagedError) as caught:
        store["train"].means()
    assert f"chunk {CHUNK} of split 'train' is damaged" in str(caught.value)
    assert str(chunk_file(store)) in str(caught.value)
    assert f"run `actstore verify {store.path} --repair`" in str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_checked_store_refuses_rows_of_a_damaged_chunk_alone(make_store: Any, layout: dict[str, Any]) -> None:
    made = make_store(**layout)
    chunk_rows = made.spec.chunk_rows
    flip(chunk_file(made))
    split = actstore.open(made.path, checked=True)["train"]
    np.testing.assert_array_equal(split.take([0, 999, 17]), made.values[[0, 999, 17]])
    np.testing.assert_array_equal(split[5:50], made.values[5:50])
    inside = CHUNK * chunk_rows  # byte 100 is in its first row
    reads: list[Callable[[], Any]] = [lambda: split.take([3, inside]), lambda: split[inside : inside + 3]]
    for read in reads:
        with pytest.raises(DamagedError):
            read()


def test_a_chunk_is_looked_at_once(make_store: Any) -> None:
    store = make_store()
    split = actstore.open(store.path, checked=True)["train"]
    split.take([CHUNK * 96])
    flip(chunk_file(store))  # seen through the mapping, but no longer asked for
    split.take([CHUNK * 96 + 1])
    with pytest.raises(DamagedError):
        actstore.open(store.path, checked=True)["train"].take([CHUNK * 96 + 1])


@pytest.mark.parametrize("step", [1, 40, 96, 100, 2000])
@pytest.mark.parametrize("span", [(0, 1000), (5, 6), (95, 97), (130, 999), (990, 1000)])
def test_a_scan_gives_the_rows_and_checks_their_chunks(make_store: Any, span: tuple[int, int], step: int) -> None:
    store = make_store()
    split = store["train"]
    pieces = list(split.rows.scan(*span, step))
    assert all(0 < len(piece) <= step for piece in pieces)
    np.testing.assert_array_equal(np.concatenate(pieces), store.values[slice(*span)])
    touched = range(span[0] // 96, -(-span[1] // 96))
    assert [split.rows.checks.is_done(chunk) for chunk in range(11)] == [chunk in touched for chunk in range(11)]
    for again in (store["train"], split):  # not checked yet, and checked
        into = np.empty((step, store.values.shape[1]), np.float32)
        converted = [piece.copy() for piece in again.rows.scan(*span, step, into)]
        np.testing.assert_array_equal(np.concatenate(converted), store.values[slice(*span)].astype(np.float32))
        assert [again.rows.checks.is_done(chunk) for chunk in range(11)] == [chunk in touched for chunk in range(11)]


def test_a_scan_that_converts_finds_damage(make_store: Any) -> None:
    store = make_store()
    flip(chunk_file(store))
    into = np.empty((64, store.values.shape[1]), np.float32)
    with pytest.raises(DamagedError):
        list(store["train"].rows.scan(0, 1000, 64, into))


def test_an_append_meanwhile_is_no_damage(make_store: Any) -> None:
    store = make_store(rows=1000)  # the last chunk has room for 56 rows more
    before = store["train"]
    _ = before.rows  # mapped now
    late = store["train"]  # mapped after the append
    with store.writer("train") as writer:
        writer.append(np.ones((20, 64)), np.zeros(20, int), [f"n{row}" for row in range(20)])
    for split in (before, late):
        assert len(split) == 1000
        split.rows.check(range(11))
    np.testing.assert_array_equal(before.take(np.arange(1000)), store.values)


def test_damage_gets_no_checksum_of_its_own_by_an_append(make_store: Any) -> None:
    store = make_store(rows=1000)
    flip(chunk_file(store, 10), 7)
    with pytest.raises(DamagedError, match="chunk 10 of split 'train'"):
        store.writer("train")


@pytest.mark.parametrize("layout", [{"chunk_rows": 91}, {"shard_inner_rows": 12}], ids=str)
def test_a_truncated_chunk_is_named_with_its_sizes(make_store: Any, layout: dict[str, Any]) -> None:
    store = make_store(**layout)
    file = chunk_file(store)
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:513])
    reads: list[Callable[[], Any]] = [lambda: store["train"].take([CHUNK * 96 + 60]), lambda: store["train"].means()]
    for read in reads:
        with pytest.raises(DamagedError) as caught:
            read()
        assert str(file) in str(caught.value)
        assert "513 bytes" in str(caught.value)
        assert f"expected {size}" in str(caught.value).replace(",", "")


@pytest.mark.parametrize("size", [0, 3, 60])
def test_a_compressed_shard_shorter_than_its_index_is_damaged(make_store: Any, size: int) -> None:
    store = make_store(codec="blosc", shard_inner_rows=12)
    file = chunk_file(store)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(DamagedError) as caught:
        store["train"].take([CHUNK * 96 + 60])
    assert str(file) in str(caught.value)


def test_truncated_labels_are_named_with_their_sizes(make_store: Any) -> None:
    store = make_store()
    file = store.path / "train/labels/c/0"
    file.write_bytes(file.read_bytes()[:513])
    with pytest.raises(DamagedError) as caught:
        _ = store["train"].labels
    assert f"chunk {file} is corrupt (it has 513 bytes, expected 262,148: it is truncated)" in str(caught.value)

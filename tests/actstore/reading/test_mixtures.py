"""A store that was half copied: of all mixtures of files before and after an append, each is read right or refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actstore
from actstore.errors import ActstoreError, DamagedError, ReplacedError
from actstore.storage.place import FolderPath
from actstore.upkeep.verify import verify_store
from tests.store_files import files

ROWS, MORE = 100, 80
VALUES = np.random.default_rng(0).random((ROWS + MORE, 64), dtype=np.float32).astype(np.float16)
LABELS = np.random.default_rng(1).integers(0, 3, ROWS + MORE)
IDS = [f"id/{row}" for row in range(ROWS + MORE)]
TEXTS = [f"text {row % 7}" for row in range(ROWS + MORE)]
PARTS = ("zarr.json", "ledger.jsonl", "activations/c/1", "activations/c/2", "labels/c", "path_bytes/c",
         "path_offsets/c", "place.bytes/c", "place.offsets/c", "/zarr.json")  # fmt: skip


def append(store: actstore.ActivationStore, first: int, last: int) -> None:
    with store.writer("train") as writer:
        writer.append(VALUES[first:last], LABELS[first:last], IDS[first:last], {"place": TEXTS[first:last]})


def group_of(name: str) -> int:
    """Which of the parts a file below the split belongs to."""
    if name == "zarr.json":
        return 0
    return next(number for number, part in enumerate(PARTS) if number and part in f"/{name}")


def walk(groups: int) -> Iterator[tuple[int, bool]]:
    """All 2^n mixtures, one change at a time (a Gray code): which group, and whether it is the later one now."""
    now = [False] * groups
    for step in range(1, 1 << groups):
        group = (step & -step).bit_length() - 1
        now[group] = not now[group]
        yield group, now[group]


def is_right(read: Callable[[], Any], expected: Callable[[int], Any], rows: int) -> bool:
    """False where it is refused; anything else that is not right fails."""
    try:
        found = read()
    except (DamagedError, ReplacedError):
        return False
    np.testing.assert_array_equal(found, expected(rows))
    return True


@pytest.mark.parametrize("layout", [{}, {"shard_inner_rows": 4}, {"codec": "blosc"}, {"dim_of_odd_pages": True}])
def test_every_mixture_is_read_right_or_refused(tmp_path: Path, layout: dict[str, Any]) -> None:
    options = {"chunk_rows": 64} if "dim_of_odd_pages" not in layout else {"chunk_rows": 60}  # those are not mapped
    options |= {key: value for key, value in layout.items() if key != "dim_of_odd_pages"}
    store = actstore.create(tmp_path / "x.zarr", classes=["a", "b", "c"], dim=64, **options)
    append(store, 0, ROWS)
    before = files(tmp_path / "x.zarr/train")
    append(store, ROWS, ROWS + MORE)
    after = files(tmp_path / "x.zarr/train")
    changed = {name for name in after if before.get(name) != after[name]}
    groups = sorted({group_of(name) for name in changed})
    assert len(groups) == len(PARTS)
    shutil.copytree(tmp_path / "x.zarr", tmp_path / "y.zarr")
    for name in changed:
        put(tmp_path / "y.zarr/train" / name, before.get(name))
    outcomes = [read_all(tmp_path / "y.zarr")]
    for place, is_later in walk(len(groups)):
        for name in changed:
            if group_of(name) == groups[place]:
                put(tmp_path / "y.zarr/train" / name, (after if is_later else before).get(name))
        outcomes.append(read_all(tmp_path / "y.zarr"))
    assert outcomes[0] == (True,) * 4
    assert len(outcomes) == 1024
    assert (True,) * 4 in outcomes[1:]
    for place in range(4):
        assert {outcome[place] for outcome in outcomes} == {True, False}


def put(file: Path, data: bytes | None) -> None:
    if data is None:
        file.unlink(missing_ok=True)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def read_all(path: Path) -> tuple[bool, ...]:
    split = actstore.open(path)["train"]
    rows = len(split)
    return (
        is_right(lambda: split.take(np.arange(rows)), lambda rows: VALUES[:rows], rows),
        is_right(lambda: split.labels, lambda rows: LABELS[:rows], rows),
        is_right(lambda: list(split.ids), lambda rows: IDS[:rows], rows),
        is_right(lambda: split.columns["place"], lambda rows: TEXTS[:rows], rows),
    )


@pytest.mark.parametrize("name", ["labels/c/0", "path_bytes/c/0", "place.bytes/c/0", "activations/ledger.jsonl"])
def test_nothing_is_appended_to_what_is_of_another_moment(tmp_path: Path, name: str) -> None:
    store = actstore.create(tmp_path / "x.zarr", classes=["a", "b", "c"], dim=64, chunk_rows=64)
    append(store, 0, ROWS)
    earlier = (tmp_path / "x.zarr/train" / name).read_bytes()
    append(store, ROWS, 150)
    (tmp_path / "x.zarr/train" / name).write_bytes(earlier)
    before = files(tmp_path / "x.zarr")
    with pytest.raises(DamagedError, match="nothing was written"):
        append(store, 150, 180)
    assert files(tmp_path / "x.zarr") == before


@pytest.mark.parametrize("name", ["labels", "path_bytes", "path_offsets", "place.bytes", "place.offsets"])
def test_nothing_is_appended_to_a_damaged_chunk(tmp_path: Path, name: str) -> None:
    store = actstore.create(tmp_path / "x.zarr", classes=["a", "b", "c"], dim=64, chunk_rows=64)
    append(store, 0, ROWS)
    chunk = tmp_path / "x.zarr/train" / name / "c/0"
    data = bytearray(chunk.read_bytes())
    data[8] ^= 1
    chunk.write_bytes(data)
    before = files(tmp_path / "x.zarr")
    with pytest.raises(ActstoreError, match=r"nothing was written.*--repair"):
        append(store, ROWS, 180)
    assert files(tmp_path / "x.zarr") == before


@pytest.mark.parametrize("layout", [{"shard_inner_rows": 4}, {"codec": "blosc"}, {"chunk_rows": 60}])
def test_rows_that_are_not_mapped_are_those_that_were_opened(tmp_path: Path, layout: dict[str, Any]) -> None:
    """Another store of the very same layout takes the place of one that is being read."""
    options = {"classes": ["a"], "dim": 64, "chunk_rows": 64, **layout}

    def make(name: str, values: Any) -> actstore.ActivationStore:
        store = actstore.create(tmp_path / name, **options)
        with store.writer("train") as writer:
            writer.append(values)
        return store

    store = make("x.zarr", VALUES[:ROWS])
    split = store["train"]
    np.testing.assert_array_equal(split.take([5]), VALUES[[5]])
    with store.writer("train") as writer:
        writer.append(VALUES[ROWS:])
    np.testing.assert_array_equal(split.take([5, 99]), VALUES[[5, 99]])  # an append changes nothing
    shutil.rmtree(tmp_path / "x.zarr")
    make("x.zarr", VALUES[:ROWS] + 1)
    with pytest.raises(ReplacedError):
        split.take([5])


def test_a_split_whose_store_was_replaced_says_so(tmp_path: Path) -> None:
    def make(seed: int) -> actstore.Split:
        values = np.random.default_rng(seed).random((ROWS, 64), dtype=np.float32)
        rows = (values, LABELS[:ROWS] * seed, [f"{seed}/{row}" for row in range(ROWS)], {"place": [str(seed)] * ROWS})
        return actstore.from_arrays(tmp_path / "x.zarr", {"train": rows}, classes=["a", "b", "c"])["train"]

    opened = make(1)
    shutil.rmtree(tmp_path / "x.zarr")
    make(0)
    for read in (lambda: opened.labels, lambda: opened.ids, lambda: opened.columns["place"], lambda: opened.take([0])):
        with pytest.raises(ReplacedError, match="open it again"):
            read()
    shutil.rmtree(tmp_path / "x.zarr")
    with pytest.raises(ReplacedError):
        actstore.Split(opened.store_path, "train", opened.spec, opened.committed).take([0])


def test_a_store_that_is_gone_for_a_moment_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another tool moves it away, and another one to its place just when the reader asks what has become of it."""
    path, away = tmp_path / "x.zarr", tmp_path / "away.zarr"
    store = actstore.from_arrays(path, {"train": (VALUES[:ROWS], LABELS[:ROWS])}, classes=["a", "b", "c"])
    opened = store["train"]
    path.rename(away)
    with pytest.raises(ReplacedError, match="open it again"):
        store["train"]
    with pytest.raises(ReplacedError, match="open it again"):
        verify_store(store)
    exists = FolderPath.exists

    def meanwhile(file: FolderPath) -> bool:
        if away.exists():
            away.rename(path)
        return exists(file)

    monkeypatch.setattr(FolderPath, "exists", meanwhile)
    with pytest.raises(ReplacedError, match="open it again"):
        _ = opened.labels

"""Chunks of another size: the same rows, labels, ids, classes and origin; interrupted, it goes on."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import actstore
from actstore.errors import (
    DamagedError,
    IncompleteError,
    InvalidInputError,
    LockedError,
    NotAStoreError,
    ReplacedError,
)
from actstore.storage.place import FolderPath
from actstore.storage.place import exchange as exchange_names
from actstore.tables.importing import ImportRequest, append_file, import_file
from actstore.tables.row_source import split_table
from actstore.upkeep import copies
from actstore.upkeep.copies import rechunk
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import verify_store
from cli.actstore import main
from tests.store_files import files

VALUES = np.random.default_rng(0).random((500, 16), dtype=np.float32)


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """A store whose first import was small: chunks of 4 KB, 64 rows each."""
    for name, part in (("a", VALUES[:40]), ("b", VALUES[40:]), ("v", VALUES[:70])):
        np.save(tmp_path / f"{name}.npy", part)
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{row}\n" for row in range(len(part))))
        np.save(tmp_path / f"{name}_labels.npy", np.arange(len(part)) % 3)

    def request(name: str, **more: Any) -> ImportRequest:
        labels, ids = tmp_path / f"{name}_labels.npy", tmp_path / f"{name}.txt"
        return ImportRequest(tmp_path / f"{name}.npy", labels=labels, ids=ids, **more)

    store = import_file(request("a"), tmp_path / "x.zarr")
    append_file(request("b", split="train"), store.path)
    import_file(request("v", split="val"), store.path)
    assert store.spec.chunk_bytes == 4096
    return tmp_path / "x.zarr"


def assert_same(found: actstore.ActivationStore, before: actstore.ActivationStore) -> None:
    assert (list(found), found.classes) == (list(before), before.classes)
    assert found.spec.provenance == before.spec.provenance
    for name in before:
        np.testing.assert_array_equal(found[name][:], before[name][:])
        np.testing.assert_array_equal(found[name].labels, before[name].labels)
        assert list(found[name].ids) == list(before[name].ids)
        assert found[name].committed.sources == before[name].committed.sources
    assert verify_store(found) == []


def test_to_a_new_store(grown: Path, tmp_path: Path) -> None:
    before = files(grown)
    made = rechunk(grown, tmp_path / "y.zarr", 256)
    assert made.spec.chunk_rows == 256
    assert len(list((tmp_path / "y.zarr/train/activations/c").iterdir())) == 2
    assert_same(made, actstore.open(grown))
    assert files(grown) == before
    again = files(tmp_path / "y.zarr")
    rechunk(grown, tmp_path / "y.zarr", 256)  # repeated: nothing to do
    assert files(tmp_path / "y.zarr") == again


def test_in_place_and_then_repaired_from_its_sources(grown: Path, tmp_path: Path) -> None:
    train = actstore.open(grown)["train"]
    held = train[:]  # a reader that has mapped the old chunks
    rechunk(grown, tmp_path / "copy.zarr")
    made = rechunk(grown)
    assert files(grown) == files(tmp_path / "copy.zarr")
    assert made.spec.chunk_bytes == 32 << 20
    np.testing.assert_array_equal(held, VALUES)
    assert sorted(path.name for path in tmp_path.glob("x.zarr*")) == ["x.zarr"]
    chunk = grown / "train/activations/c/0/0"
    data = bytearray(chunk.read_bytes())
    data[100] ^= 1
    chunk.write_bytes(data)
    assert [said for _, said in repair_faults(made, verify_store(made))] == ["repaired from its source"]
    np.testing.assert_array_equal(actstore.open(grown)["train"][:], VALUES)
    assert append_file(ImportRequest(tmp_path / "a.npy", labels=tmp_path / "a_labels.npy", ids=tmp_path / "a.txt",
                                     split="train"), grown) >= 0  # fmt: skip


@pytest.mark.parametrize("stop", [1, 4, 7, 9])
def test_interrupted_it_ends_in_the_same_bytes(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    monkeypatch.setattr("actstore.tables.row_source.BLOCK_BYTES", 4096)  # 64 rows at a time
    whole = files(rechunk(grown, tmp_path / "whole.zarr", 128).path)  # type: ignore[arg-type]
    calls = 0

    def interrupt(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rechunk(grown, None, 128, interrupt)
    np.testing.assert_array_equal(actstore.open(grown)["train"][:], VALUES)  # nothing is replaced before the end
    assert actstore.open(grown).spec.chunk_rows == 64
    rechunk(grown, None, 128)
    assert files(grown) == whole
    assert not grown.with_name("x.zarr.rechunked").exists()


MOMENTS = ["before they change places", "after it", "before both renames", "between them", "while the old is removed"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_the_copy_takes_its_place(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    whole = files(rechunk(grown, tmp_path / "whole.zarr", 128).path)  # type: ignore[arg-type]
    put_strangers(grown)
    renames = 0

    def exchange(first: Path, second: Path) -> bool:
        if "rename" in moment or "between" in moment:
            return False
        if moment.startswith("before"):
            raise KeyboardInterrupt
        exchanged = exchange_names(first, second)
        if moment == "after it":
            raise KeyboardInterrupt
        return exchanged

    def rename(self: Path, target: Path) -> Path:
        nonlocal renames
        renames += 1
        if renames == {"before both renames": 1, "between them": 2}.get(moment):
            raise KeyboardInterrupt
        return Path(self).rename(target)

    def remove(path: Path) -> list[Path]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(copies, "exchange", exchange)
        patched.setattr(copies, "remove_own", remove)
        copied = copies._copy

        def copy(*arguments: Any, **options: Any) -> Any:
            made = copied(*arguments, **options)
            patched.setattr(FolderPath, "rename", rename)
            return made

        patched.setattr(copies, "_copy", copy)
        with pytest.raises(KeyboardInterrupt):
            rechunk(grown, None, 128)
    rechunk(grown, None, 128)
    assert files(grown) == whole | STRANGERS
    assert sorted(path.name for path in tmp_path.glob("x.zarr*")) == ["x.zarr"]


STRANGERS = {
    "README.md": b"mine", "notes/a/b.txt": b"b", "train/other/zarr.json": b"{}", "train/other/c/0": b"0",
    "train/labels/remark": b"r", "train/activations/c/1/remark": b"r", ".hidden": b"h",
}  # fmt: skip


def put_strangers(store: Path) -> None:
    for name, data in STRANGERS.items():
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_bytes(data)
    (store / "empty").mkdir()


def test_what_others_put_into_a_store_stays_there(grown: Path, tmp_path: Path) -> None:
    whole = files(rechunk(grown, tmp_path / "whole.zarr", 128).path)  # type: ignore[arg-type]
    actstore.open(grown)["train"].statistics()
    put_strangers(grown)
    assert_same(rechunk(grown, None, 128), actstore.open(tmp_path / "whole.zarr"))
    assert files(grown) == whole | STRANGERS
    assert (grown / "empty").is_dir()
    assert sorted(path.name for path in tmp_path.glob("x.zarr*")) == ["x.zarr"]


def test_what_cannot_be_moved_is_left_and_named(grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (grown / "README.md").write_bytes(b"mine")

    def replaced(first: Path, second: Path) -> bool:
        (first / "README.md").write_bytes(b"the new one's")
        return exchange_names(first, second)

    monkeypatch.setattr(copies, "exchange", replaced)
    with pytest.raises(InvalidInputError, match=r"README\.md could not be moved"):
        rechunk(grown, None, 128)
    assert (tmp_path / "x.zarr.before-rechunk/README.md").read_bytes() == b"mine"
    assert actstore.open(grown).spec.chunk_rows == 128


def test_classes_and_splits_that_come_during_the_copy_are_in_it(grown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied, runs = copies._copy, 0

    def copy(*arguments: Any, **options: Any) -> Any:
        nonlocal runs
        runs += 1
        made = copied(*arguments, **options)
        if runs == 1:
            store = actstore.open(grown)
            store.add_classes(["late"])
            with store.writer("late") as writer:
                writer.append(VALUES[:9], ["late"] * 9, [f"l{row}" for row in range(9)])
        return made

    monkeypatch.setattr(copies, "_copy", copy)
    made = rechunk(grown, None, 128)
    assert runs == 2
    assert made.classes[-1] == "late"
    np.testing.assert_array_equal(made["late"][:], VALUES[:9])
    assert verify_store(made) == []


@pytest.mark.parametrize(("before", "after"), [(64, 16), (16, 64), (64, 256)])
def test_a_store_opened_before_goes_on_in_the_layout_of_today(tmp_path: Path, before: int, after: int) -> None:
    old = actstore.from_arrays(tmp_path / "x.zarr", {"train": (VALUES[:300], None)}, chunk_rows=before)
    split = old["train"]
    rechunk(old.path, None, after)
    with pytest.raises(ReplacedError):
        split.take([0])
    with pytest.raises(ReplacedError):
        old["train"].take([0])  # in the layout that the store object knows
    with old.writer("train") as writer:
        writer.append(VALUES[300:])
    found = actstore.open(old.path)
    assert found.spec.chunk_rows == after
    np.testing.assert_array_equal(found["train"][:], VALUES)
    assert verify_store(found) == []


def test_a_writer_of_a_store_that_was_replaced_by_another_is_refused(tmp_path: Path) -> None:
    old = actstore.from_arrays(tmp_path / "x.zarr", {"train": (VALUES, np.zeros(500, int))}, classes=["a"])
    shutil.rmtree(tmp_path / "x.zarr")
    actstore.from_arrays(tmp_path / "x.zarr", {"train": (VALUES, np.zeros(500, int))}, classes=["b"])
    before = files(tmp_path / "x.zarr")
    with pytest.raises(ReplacedError):
        old.writer("train")
    with pytest.raises(ReplacedError):
        old.add_classes(["c"])
    assert files(tmp_path / "x.zarr") == before


def test_a_writer_of_a_store_that_was_discarded_leaves_nothing(tmp_path: Path) -> None:
    """Else whoever makes a store there next would find something in its way."""
    store = actstore.create(tmp_path / "x.zarr", classes=["a"], dim=16)
    (tmp_path / "x.zarr/zarr.json").unlink()
    with pytest.raises(NotAStoreError):
        store.writer("train")
    assert not list((tmp_path / "x.zarr").iterdir())


def test_two_that_finish_at_once(grown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one waits, and finds nothing left to do."""
    finished, threads, strangers = [], [], copies.strangers

    def meanwhile(old: Path) -> list[Path]:
        monkeypatch.setattr(copies, "strangers", strangers)
        threads.append(threading.Thread(target=lambda: finished.append(copies._finish(FolderPath(grown)))))
        threads[0].start()
        threads[0].join(0.2)
        assert not finished
        return strangers(old)

    monkeypatch.setattr(copies, "strangers", meanwhile)
    rechunk(grown, chunk_rows=128)
    threads[0].join()
    assert finished == [False]
    assert verify_store(actstore.open(grown)) == []


def test_shards_blosc_and_further_layers(make_store: Any, tmp_path: Path) -> None:
    for number, layout in enumerate(({"shard_inner_rows": 12}, {"codec": "blosc"}, {"dtype": "f4"})):
        store = make_store(name=f"s{number}.zarr", **layout)
        with store.writer("train.deep", dim=24) as writer:
            writer.append(store.values[:, :24], store.labels)
        made = rechunk(store.path, tmp_path / f"t{number}.zarr", 100)
        assert made.spec.chunk_rows == (108 if "shard_inner_rows" in layout else 100)
        assert made["train.deep"].spec.chunk_rows == made.spec.chunk_rows
        assert_same(made, store)


def test_what_is_refused(grown: Path, tmp_path: Path) -> None:
    other = actstore.from_arrays(tmp_path / "o.zarr", {"train": (VALUES, None)})
    with pytest.raises(InvalidInputError, match="is no unfinished copy of"):
        rechunk(grown, other.path)
    same = actstore.from_arrays(tmp_path / "p.zarr", {"train": (VALUES + 1, None)}, chunk_rows=512)
    with pytest.raises(InvalidInputError, match="holds other rows than"):
        rechunk(other.path, same.path, 512)
    with actstore.open(grown).writer("train") as _, pytest.raises(LockedError):
        rechunk(grown)
    writer = actstore.open(grown).writer("new")
    writer.append(VALUES, None)
    writer.close()
    with pytest.raises(IncompleteError, match=r"'new' of .* is not complete"):
        rechunk(grown, tmp_path / "q.zarr")
    with pytest.raises(InvalidInputError, match="cannot be replaced in one step"):
        rechunk("memory://bucket/x.zarr")
    chunk = grown / "val/activations/c/0/0"
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    actstore.open(grown).writer("new", restart=True).commit()
    with pytest.raises(DamagedError, match="val/activations chunk 0"):
        rechunk(grown, tmp_path / "r.zarr")


def test_chosen_rows_are_a_table(make_store: Any) -> None:
    store = make_store()
    rows = np.array([7, 3, 999, 3])
    table = split_table(store["train"], rows)
    assert table.activations.shape == (4, 64)
    np.testing.assert_array_equal(np.concatenate(list(table.activations.blocks(1, 4))), store.values[rows[1:]])
    assert table.labels is not None
    assert table.ids is not None
    np.testing.assert_array_equal(table.labels, store.labels[rows])
    assert list(table.ids) == [store.ids[row] for row in rows]


def test_the_command(grown: Path) -> None:
    done = CliRunner().invoke(main, ["rechunk", str(grown), "--chunk-rows", "256", "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["rows"], result["chunk_rows"]) == ({"train": 500, "val": 70}, 256)
    done = CliRunner().invoke(main, ["rechunk", str(grown)])
    assert "in chunks of 524,288 rows (33.6 MB)" in done.stdout

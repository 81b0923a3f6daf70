"""verify and repair beside appends: nothing is mended from what was read before the lock, and nothing is made up."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import actstore
from actstore.errors import LockedError
from actstore.tables.importing import ImportRequest, append_file, import_file
from actstore.upkeep import repair as repair_module
from actstore.upkeep import verify
from actstore.upkeep.repair import repair_faults, restore_groups
from actstore.upkeep.verify import verify_store
from cli.actstore import main
from tests.store_files import files

VALUES = np.random.default_rng(0).random((400, 16), dtype=np.float32)


def flip(file: Path, place: int = 100) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


@pytest.fixture
def store(tmp_path: Path) -> actstore.ActivationStore:
    """Two splits of 100 rows, each from a file of its own, and a third file of 60 rows."""
    for name, rows in (("a", VALUES[:100]), ("b", VALUES[100:200]), ("more", VALUES[200:260])):
        np.save(tmp_path / f"{name}.npy", rows)
        np.save(tmp_path / f"{name}-labels.npy", np.arange(len(rows)) % 3 + 1)
    for name in ("a", "b"):
        made = import_file(request(tmp_path, name, name), tmp_path / "x.zarr")
    return made


def request(folder: Path, name: str, split: str) -> ImportRequest:
    return ImportRequest(folder / f"{name}.npy", split=split, labels=folder / f"{name}-labels.npy")


def grow(folder: Path) -> None:
    append_file(request(folder, "more", "b"), folder / "x.zarr")


def test_rows_committed_to_a_later_split_meanwhile_stay(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first split's source is slow: 60 rows come to the second one before its turn."""
    flip(tmp_path / "x.zarr/a/activations/c/0/0")
    flip(tmp_path / "x.zarr/b/labels/c/0", 300)
    faults = verify_store(store)
    reopen = repair_module.reopen
    pristine = (tmp_path / "x.zarr/b/labels/c/0").read_bytes()

    def slow(source: Any, kinds: Any) -> Any:
        if source["split"] == "a":
            flip(tmp_path / "x.zarr/b/labels/c/0", 300)  # else the append is refused
            grow(tmp_path)
            flip(tmp_path / "x.zarr/b/labels/c/0", 300)
        return reopen(source, kinds)

    monkeypatch.setattr(repair_module, "reopen", slow)
    outcomes = repair_faults(store, faults)
    assert [said for _, said in outcomes] == ["repaired from its source"] * 2
    assert (tmp_path / "x.zarr/b/labels/c/0").read_bytes() != pristine
    found = actstore.open(store.path)
    expected = np.concatenate([np.arange(100) % 3, np.arange(60) % 3]) + 1
    np.testing.assert_array_equal(found["b"].labels, expected)
    np.testing.assert_array_equal(found["b"][:], VALUES[100:260])
    assert verify_store(found) == []


def test_what_is_sound_by_now_is_left_alone(store: Any, tmp_path: Path) -> None:
    labels = tmp_path / "x.zarr/b/labels/c/0"
    flip(labels)
    faults = verify_store(store)
    assert [fault.array for fault in faults] == ["labels"]
    flip(labels)
    grow(tmp_path)
    before = files(tmp_path / "x.zarr")
    assert repair_faults(store, faults) == []
    assert files(tmp_path / "x.zarr") == before


def test_a_split_that_is_being_written_to_is_not_mended(store: Any, tmp_path: Path) -> None:
    labels = tmp_path / "x.zarr/b/labels/c/0"
    flip(labels)
    faults = verify_store(store)
    flip(labels)
    with store.writer("b") as writer:
        with pytest.raises(LockedError):
            repair_faults(store, faults)
        writer.append(VALUES[:5], np.ones(5, int))


def test_damaged_metadata_is_mended_under_the_lock(store: Any, tmp_path: Path) -> None:
    group = tmp_path / "x.zarr/b/zarr.json"
    with store.writer("b") as writer:
        writer.append(VALUES[:5], np.ones(5, int))
        flip(group)
        ((file, said),) = restore_groups(store.path)
        assert (file, "another process is writing" in said) == (str(group), True)
        flip(group)
    mended: list[Path] = []
    real = repair_module._describe_again

    def describe(path: Any, spec: Any) -> Any:
        mended.append(path)
        with pytest.raises(LockedError):
            actstore.open(store.path).writer("b")
        return real(path, spec)

    flip(group)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(repair_module, "_describe_again", describe)
        assert [said[:13] for _, said in restore_groups(store.path)] == ["written anew "]
    assert mended
    assert len(actstore.open(store.path)["b"]) == 105


@pytest.mark.parametrize("moment", range(6))
def test_an_append_between_two_looks_is_no_fault(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """At one of the moments at which verify reads something of split b, 60 rows are committed to it."""
    calls = 0

    def growing(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == moment + 1 and len(actstore.open(store.path)["b"]) == 100:
                grow(tmp_path)
            return real(*arguments, **options)

        return call

    for name in ("read_ledger", "metadata_difference", "check_activations", "read_fact", "_raw_array_faults"):
        monkeypatch.setattr(verify, name, growing(getattr(verify, name)))
    assert verify_store(actstore.open(store.path)) == []
    assert len(actstore.open(store.path)["b"]) == 160


def test_a_fault_beside_an_append_is_still_named(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(tmp_path / "x.zarr/a/activations/c/0/0")
    real, grown = verify.verify_split, []

    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if path.name == "b" and not grown:
            grown.append(True)
            found = real(path, *arguments, **options)
            grow(tmp_path)
            return found
        return real(path, *arguments, **options)

    monkeypatch.setattr(verify, "verify_split", call)
    assert [(fault.split, fault.array) for fault in verify_store(store)] == [("a", "activations")]


def test_pending_that_goes_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from actstore.storage.place import FolderPath

    folder = FolderPath(tmp_path / "pending")
    folder.mkdir()
    assert not folder.has_entries()
    shutil.rmtree(folder)
    assert not folder.has_entries()
    (tmp_path / "file").write_bytes(b"")
    assert FolderPath(tmp_path / "file").has_entries()
    monkeypatch.setattr(FolderPath, "is_dir", lambda self: True)  # seen just before it went
    assert not folder.has_entries()


def test_the_command_says_that_nothing_is_left(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that is gone once the split is locked is no failure of the command."""
    labels, real = tmp_path / "x.zarr/b/labels/c/0", repair_module.repair_faults
    flip(labels)

    def late(*arguments: Any) -> Any:
        flip(labels)
        return real(*arguments)

    monkeypatch.setattr(repair_module, "repair_faults", late)
    done = CliRunner().invoke(main, ["verify", str(store.path), "--repair"])
    assert done.exit_code == 0, done.output
    assert "every chunk is whole" in done.stdout

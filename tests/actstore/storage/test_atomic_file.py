"""A file is whole under its name, whoever else writes it, and nothing of an unfinished one is left."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from actstore.errors import StorageError
from actstore.storage.atomic_file import AtomicFile, write_atomic


def test_of_two_at_once_the_later_waits_and_is_there_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, events, finish = tmp_path / "file", [], AtomicFile.finish

    def write() -> None:
        write_atomic(path, b"second")
        events.append("second")

    thread = threading.Thread(target=write)

    def meanwhile(file: AtomicFile) -> int:
        monkeypatch.setattr(AtomicFile, "finish", finish)
        thread.start()
        thread.join(0.2)
        events.append("first")
        return finish(file)

    monkeypatch.setattr(AtomicFile, "finish", meanwhile)
    write_atomic(path, b"first, which is longer")
    thread.join()
    assert events == ["first", "second"]
    assert path.read_bytes() == b"second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_what_a_kill_has_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"half of something longer")
    write_atomic(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert not (tmp_path / "file.part").exists()


def test_a_failed_write_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*file: "):
        write_atomic(tmp_path / "file", b"a file cannot replace a folder")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]

"""One holder at a time, who lets go by closing, by being dropped, or by being killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from actstore.errors import LockedError, StorageError
from actstore.storage.locks import FileLock


def test_a_second_holder_is_refused_until_the_first_closes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    with FileLock(path, "taken"), pytest.raises(LockedError, match="taken"):
        FileLock(path, "taken")
    FileLock(path, "taken").close()


def test_a_lock_that_nothing_refers_to_is_free(tmp_path: Path) -> None:
    FileLock(tmp_path / "lock", "taken")
    with FileLock(tmp_path / "lock", "still taken"), pytest.raises(LockedError, match="by the second"):
        FileLock(tmp_path / "lock", "by the second")


def test_what_must_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="gone"):
        FileLock(tmp_path / "gone", must_exist=True)
    assert not (tmp_path / "gone").exists()


def test_without_a_refusal_it_is_waited_for_also_of_a_folder(tmp_path: Path) -> None:
    first, events = FileLock(tmp_path), []

    def wait() -> None:
        with FileLock(tmp_path):
            events.append("second")

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.2)
    events.append("first")
    first.close()
    thread.join()
    assert events == ["first", "second"]


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from actstore.storage.locks import FileLock
lock = FileLock(Path(sys.argv[1]), "taken")
print("held", flush=True)
sys.stdin.read()
"""
    path = tmp_path / "lock"
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(LockedError):
            FileLock(path, "taken")
        child.send_signal(signal.SIGKILL)
        child.wait()
        FileLock(path, "taken").close()


def test_what_cannot_be_opened_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot write"):
        FileLock(tmp_path / "file" / "lock", "taken")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_was_renamed_while_it_was_waited_for_is_not_the_one_that_is_locked(tmp_path: Path, kind: str) -> None:
    """As a store that another process replaces: the lock must be of what has the name now."""
    path, other = tmp_path / "x", tmp_path / "y"
    make = (lambda where: where.mkdir()) if kind == "folder" else (lambda where: where.write_bytes(b""))
    make(path)
    make(other)
    first, locks = FileLock(path), []
    thread = threading.Thread(target=lambda: locks.append(FileLock(path)))
    thread.start()
    thread.join(0.1)  # it waits for the first, or will
    path.rename(tmp_path / "old")
    other.rename(path)
    first.close()
    thread.join()
    with pytest.raises(LockedError):
        FileLock(path, "taken")
    FileLock(tmp_path / "old", "free").close()
    locks[0].close()


def test_a_folder_that_is_gone_when_its_turn_comes_is_refused(tmp_path: Path) -> None:
    path, errors = tmp_path / "x", []
    path.mkdir()
    first = FileLock(path)

    def wait() -> None:
        with pytest.raises(StorageError) as refused:
            FileLock(path, must_exist=True)
        errors.append(refused)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.1)
    path.rmdir()
    first.close()
    thread.join()
    assert errors

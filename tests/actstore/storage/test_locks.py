"""A lock has one holder at a time, who lets go by closing, by being dropped, or by being killed; the token of a log in
a bucket is renewed by a writer that lives, and taken over from one that does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path

import pytest

from actstore.errors import LockedError, StorageError
from actstore.storage import locks
from actstore.storage.atomic_file import FileLock
from actstore.storage.locks import TokenedObject, is_gone, own_mark
from actstore.storage.object_path import ObjectPath


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


ELSEWHERE = b"0123456789abcdef:77:12345"  # a process on another machine
_numbers = count()


@pytest.fixture
def log() -> ObjectPath:
    return ObjectPath.parse(f"memory://log-{next(_numbers)}/x.zarr/train/activations/ledger.jsonl")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("BEAT", 0.05), ("LEASE", 1.0), ("LOOK", 0.02)):
        monkeypatch.setattr(locks, name, seconds)


def found(log: ObjectPath, beats: int, mark: bytes = ELSEWHERE) -> None:
    """What a writer somewhere else has put there."""
    log.put(b"one\n" + b"writing 00ff %d %b" % (beats, mark))


@pytest.mark.usefixtures("quick")
def test_a_token_that_is_not_renewed_is_taken_over_in_time(log: ObjectPath) -> None:
    found(log, 3)
    began = time.monotonic()
    writer = log.open_log()
    assert time.monotonic() - began >= locks.LEASE
    assert writer.size() == 4
    writer.close()
    assert log.read_bytes() == b"one\n"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("change", ["beat", "line", "another"])
def test_whose_writer_does_anything_is_left_alone(log: ObjectPath, change: str) -> None:
    found(log, 3)
    states = {
        "beat": b"one\nwriting 00ff 4 " + ELSEWHERE,
        "line": b"one\ntwo\nwriting 00ff 3 " + ELSEWHERE,
        "another": b"one\nwriting 00aa 0 " + ELSEWHERE,
    }
    timer = threading.Timer(0.2, log.put, [states[change]])
    timer.start()
    with pytest.raises(LockedError, match=r"another process is writing to .*x\.zarr/train; wait for it to end"):
        log.open_log()
    timer.join()
    assert log.read_bytes() == states[change]


@pytest.mark.usefixtures("quick")
def test_who_waits_goes_on_when_the_other_has_ended(log: ObjectPath) -> None:
    found(log, 3)
    timer = threading.Timer(0.2, log.put, [b"one\ntwo\n"])
    timer.start()
    writer = log.open_log()
    assert writer.size() == 8
    writer.close()


@pytest.mark.usefixtures("quick")
def test_a_writer_renews_its_token(log: ObjectPath) -> None:
    writer, seen = log.open_log(), set()
    patience = time.monotonic() + 60
    while len(seen) < 4 and time.monotonic() < patience:
        seen.add(log.read_bytes())
        time.sleep(0.01)
    assert len(seen) == 4
    writer.append(b"one\n")
    writer.require_own()
    writer.close()
    assert log.read_bytes() == b"one\n"


@pytest.mark.usefixtures("quick", "overtaking")
def test_who_was_taken_over_is_refused(log: ObjectPath) -> None:
    first = log.open_log()
    first.append(b"one\n")
    second = log.open_log()
    for act in (lambda: first.append(b"lost\n"), first.require_own):
        with pytest.raises(LockedError, match="this one stops"):
            act()
    first.close()
    second.append(b"two\n")
    second.close()
    assert log.read_bytes() == b"one\ntwo\n"


def test_who_is_about_to_settle_is_not_taken_over(log: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, replace = log.open_log(), TokenedObject._replace

    def meanwhile(self: TokenedObject, data: bytes) -> None:
        monkeypatch.setattr(TokenedObject, "_replace", replace)
        with pytest.raises(LockedError, match="wait for it to end"):
            log.open_log()
        replace(self, data)

    monkeypatch.setattr(TokenedObject, "_replace", meanwhile)
    writer.settle()
    log.open_log().close()


def test_a_beat_that_arrived_though_it_failed_is_known_again(log: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, put = log.open_log(), ObjectPath.put

    def lost(self: ObjectPath, *arguments: object) -> None:
        put(self, *arguments)  # type: ignore[arg-type]
        raise StorageError("the answer did not come")

    with monkeypatch.context() as context:
        context.setattr(ObjectPath, "put", lost)
        assert writer.beat()
    writer.append(b"one\n")
    assert writer.beat()
    writer.close()
    assert log.read_bytes() == b"one\n"


def test_of_many_at_once_one_has_the_log_at_a_time(log: ObjectPath) -> None:
    """Each appends, or is refused; nothing of either is lost."""
    done: list[bytes] = []
    refused: list[LockedError] = []

    def write(number: int) -> None:
        try:
            writer = TokenedObject(log)
        except LockedError as error:
            refused.append(error)
            return
        for part in range(3):
            writer.append(b"%d %d\n" % (number, part))
        writer.close()
        done.append(b"".join(b"%d %d\n" % (number, part) for part in range(3)))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) + len(refused) == 12
    assert done
    lines = log.read_bytes().splitlines(keepends=True)
    assert sorted(b"".join(lines[at : at + 3]) for at in range(0, len(lines), 3)) == sorted(done)


def test_a_killed_process_of_this_machine_is_known_to_be_gone(log: ObjectPath) -> None:
    code = "from actstore.storage.locks import own_mark; print(own_mark(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        mark = child.stdout.readline().strip()
        if not mark:
            pytest.skip("this system tells nothing of its processes")
        assert not is_gone(mark.decode())
        child.kill()
        while not is_gone(mark.decode()):  # also before anybody has asked for its exit code
            time.sleep(0.01)
    found(log, 3, mark)
    writer = log.open_log()  # at once
    writer.close()


def test_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    if not own_mark():
        pytest.skip("this system tells nothing of its processes")
    assert str(os.getpid()) in own_mark()
    assert not is_gone(own_mark())
    assert not is_gone(ELSEWHERE.decode())
    assert not is_gone("")
    machine, number, began = own_mark().split(":")
    assert is_gone(f"{machine}:{number}:{int(began) + 1}")  # the number was given out again
    monkeypatch.setattr(Path, "read_text", lambda path: (_ for _ in ()).throw(OSError()))
    assert own_mark() == ""

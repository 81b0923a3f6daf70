"""Actions on a state: undone and redone in any order, and replayed from a journal, they lead to the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from actstore.errors import DamagedError, StorageError
from predictor.teach.actions import (
    ASKABLE,
    Action,
    Example,
    History,
    Journal,
    RefusalError,
    State,
    parse_action,
    parse_name,
)

KEYS = [f"{number:064x}" for number in range(6)]
NAMES = ["cat", "dog", "小熊猫", "a/b"]
examples = some.lists(some.sampled_from(KEYS), min_size=1, max_size=3, unique=True)
name = some.sampled_from(NAMES)


def shown(keys: list[str]) -> tuple[Example, ...]:
    return tuple(Example(key, f"{key[-1]}.jpg") for key in keys)


def add(category: str, keys: list[str]) -> Action:
    return Action("add", category, examples=shown(keys))


action = some.one_of(
    some.builds(add, name, examples),
    some.builds(lambda one, other, keys: Action("merge", categories=(add(one, keys[:1]), add(other, keys[1:]))),
                name, name, examples),
    some.builds(lambda keys: Action("remove", keys=tuple(keys)), examples),
    some.builds(lambda keys, category: Action("move", category, keys=tuple(keys)), examples, name),
    some.builds(Action, some.sampled_from(["create", "delete"]), name),
    some.builds(Action, some.just("rename"), name, name),
)  # fmt: skip
step = some.one_of(action, some.sampled_from(["undo", "redo"]))


def perform(history: History, one: Any) -> History | None:
    """None where it is refused, which must leave everything as it was."""
    before = (json.dumps(history.state.to_json()), history.done, history.undone)
    try:
        after = (history.undo() if one == "undo" else history.redo()) if isinstance(one, str) else history.act(one)
        _ = after.state
    except RefusalError:
        return None
    finally:
        assert before == (json.dumps(history.state.to_json()), history.done, history.undone)
    return after


def listed(history: History) -> list[Any]:
    """With the order of categories and examples."""
    return history.state.to_json()


@given(some.lists(step, max_size=25))
def test_every_action_can_be_undone_redone_and_replayed(steps: list[Any]) -> None:
    history, kept, states = History(), [], [listed(History())]
    for one in steps:
        if (after := perform(history, one)) is not None:
            history = after
            kept.append({"do": one} if isinstance(one, str) else one.to_json())
            states = states[: len(history.done)] if one not in ("undo", "redo") else states
            states += [listed(history)] if len(states) <= len(history.done) else []
        assert listed(history) == states[len(history.done)]
        assert {key: name for name, keys in history.state.categories.items() for key in keys} == history.state.places
    replayed = History()
    for entry in json.loads(json.dumps(kept)):
        action = entry["do"] if entry["do"] in ("undo", "redo") else parse_action(entry)
        after = perform(replayed, action)
        assert after is not None
        replayed = after
    assert (replayed, listed(replayed)) == (history, listed(history))
    last, done = listed(history), len(history.done)
    for place in reversed(range(done)):
        history = history.undo()
        assert listed(history) == states[place]
    for _ in range(done):
        history = history.redo()
    assert listed(history) == last


def test_a_history_keeps_actions_and_no_former_states() -> None:
    history = History()
    for key in KEYS:
        history = history.act(add("cat", [key]))
        assert len(history.state.places) == len(history.done)
    before = history.undo()
    assert "state" not in vars(before)  # until it is asked for
    assert before.before_last is None
    assert set(before.state.places) == set(KEYS[:-1])
    assert set(history.state.places) == set(KEYS)


def test_an_image_added_elsewhere_moves() -> None:
    state = State()
    for one in (add("cat", KEYS[:2]), add("dog", KEYS[1:3]), add("dog", KEYS[1:2])):
        state.apply(one)
    assert {name: list(examples) for name, examples in state.categories.items()} == {"cat": KEYS[:1], "dog": KEYS[1:3]}


@pytest.mark.parametrize("given", [
    None, [], "x", {}, {"do": 3}, {"do": "add"}, {"do": "explode"}, {"do": "create"}, {"do": "create", "category": 3},
    {"do": "create", "category": " "}, {"do": "create", "category": "x" * 81}, {"do": "create", "category": "a\x00b"},
    {"do": "move", "keys": [], "category": "a"}, {"do": "move", "keys": "abc", "category": "a"},
    {"do": "remove", "keys": [1]}, {"do": "rename", "category": "a"}, {"do": "create", "category": "Unknown"},
])  # fmt: skip
def test_what_is_no_action_is_refused(given: Any) -> None:
    with pytest.raises(RefusalError) as error:
        parse_action(given, ASKABLE, parse_name)
    assert error.value.status in (409, 422)


def test_a_name_has_one_spelling() -> None:
    assert parse_name("  cafe\u0301   noir ") == "caf\u00e9 noir"


def test_a_line_that_was_being_written_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    for number in range(3):
        journal.append_entry({"number": number, "name": "小熊猫"})
    journal.close()
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == 10]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        opened = Journal(path)
        complete = sum(end <= size for end in ends)
        assert [entry["number"] for entry in opened.entries] == list(range(complete))
        opened.append_entry({"number": "next"})
        opened.close()
        reopened = Journal(path)
        assert [entry["number"] for entry in reopened.entries] == [*range(complete), "next"]
        reopened.close()


def test_a_flipped_byte_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    for number in range(3):
        journal.append_entry({"number": number})
    journal.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for _ in range(2):  # the second time too: a file that is refused is let go
        with pytest.raises(DamagedError, match="line 2 is damaged") as refused:
            Journal(path)
        assert refused.traceback


def test_a_disk_that_refuses_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append_entry({"number": 0})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            journal.append_entry({"number": 1})
    journal.append_entry({"number": 2})
    journal.close()
    reopened = Journal(tmp_path / "journal")
    assert [entry["number"] for entry in reopened.entries] == [0, 2]
    reopened.close()

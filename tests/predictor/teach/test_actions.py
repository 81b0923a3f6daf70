"""Actions on a state: undone and redone in any order, and replayed from a journal, they lead to the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from actstore.errors import DamagedError, StorageError
from predictor.teach.actions import ASKABLE, Add, Create, Delete, Merge, Move, Remove, Rename, parse_action
from predictor.teach.history import History
from predictor.teach.journal import Journal
from predictor.teach.refusal import RefusalError
from predictor.teach.state import Category, Example, State, parse_name

KEYS = [f"{number:064x}" for number in range(6)]
NAMES = ["cat", "dog", "小熊猫", "a/b"]
examples = some.lists(some.sampled_from(KEYS), min_size=1, max_size=3, unique=True)
name = some.sampled_from(NAMES)


def shown(keys: list[str]) -> tuple[Example, ...]:
    return tuple(Example(key, f"{key[-1]}.jpg") for key in keys)


action = some.one_of(
    some.builds(lambda category, keys: Add(category, shown(keys)), name, examples),
    some.builds(lambda one, other, keys: Merge((Category(one, shown(keys[:1])), Category(other, shown(keys[1:])))),
                name, name, examples),
    some.builds(Create, name),
    some.builds(lambda keys, category: Move(tuple(keys), category), examples, name),
    some.builds(lambda keys: Remove(tuple(keys)), examples),
    some.builds(Rename, name, name),
    some.builds(Delete, name),
)  # fmt: skip
step = some.one_of(action, some.sampled_from(["undo", "redo"]))


def perform(history: History, one: Any) -> bool:
    """False where it is refused, which must leave everything as it was."""
    before = (history.state, list(history.done), list(history.undone))
    try:
        if isinstance(one, str):
            history.undo() if one == "undo" else history.redo()
        else:
            history.act(one)
    except RefusalError:
        assert before == (history.state, history.done, history.undone)
        return False
    return True


@given(some.lists(step, max_size=25))
def test_every_action_can_be_undone_redone_and_replayed(steps: list[Any]) -> None:
    history, kept = History(), []
    for one in steps:
        if perform(history, one):
            kept.append({"do": one} if isinstance(one, str) else one.to_json())
        keys = [example.key for category in history.state for example in category.examples]
        assert len(keys) == len(set(keys))  # an image is an example of one category at most
        assert len(history.state.names) == len(history.state.categories)
    replayed = History()
    for entry in json.loads(json.dumps(kept)):
        assert perform(replayed, entry["do"] if entry["do"] in ("undo", "redo") else parse_action(entry))
    assert replayed == history
    last, done = history.state, len(history.done)
    for _ in range(done):
        history.undo()
    assert history.state == State()
    for _ in range(done):
        history.redo()
    assert history.state == last


def test_states_that_are_put_away_keep_no_tables() -> None:
    history = History()
    for key in KEYS:
        history.act(Add("cat", shown([key])))
    history.undo()
    history.undo()
    history.redo()
    assert [list(vars(state)) for _, state in (*history.done, *history.undone)] == [["categories"]] * len(KEYS)
    assert set(history.state.places) == set(KEYS[:-1])


def test_an_image_added_elsewhere_moves() -> None:
    state = Add("cat", shown(KEYS[:2])).apply(State())
    state = Add("dog", shown(KEYS[1:3])).apply(state)
    assert [len(category.examples) for category in state] == [1, 2]
    assert Add("dog", shown(KEYS[1:2])).apply(state) == state


@pytest.mark.parametrize("given", [
    None, [], "x", {}, {"do": 3}, {"do": "add"}, {"do": "explode"}, {"do": "create"}, {"do": "create", "category": 3},
    {"do": "create", "category": " "}, {"do": "create", "category": "x" * 81}, {"do": "create", "category": "a\x00b"},
    {"do": "move", "keys": [], "category": "a"}, {"do": "move", "keys": "abc", "category": "a"},
    {"do": "remove", "keys": [1]}, {"do": "rename", "category": "a"}, {"do": "create", "category": "Unknown"},
])  # fmt: skip
def test_what_is_no_action_is_refused(given: Any) -> None:
    with pytest.raises(RefusalError) as error:
        parse_action(given, ASKABLE)
    assert error.value.status in (409, 422)


def test_a_name_has_one_spelling() -> None:
    assert parse_name("  cafe\u0301   noir ") == "caf\u00e9 noir"


def test_a_line_that_was_being_written_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    for number in range(3):
        journal.append({"number": number, "name": "小熊猫"})
    journal.close()
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == 10]
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        opened = Journal(path)
        complete = sum(end <= size for end in ends)
        assert [entry["number"] for entry in opened.entries] == list(range(complete))
        opened.append({"number": "next"})
        opened.close()
        reopened = Journal(path)
        assert [entry["number"] for entry in reopened.entries] == [*range(complete), "next"]
        reopened.close()


def test_a_flipped_byte_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    for number in range(3):
        journal.append({"number": number})
    journal.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="line 2 is damaged"):
        Journal(path)


def test_a_disk_that_refuses_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append({"number": 0})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StorageError, match="the disk is full"):
            journal.append({"number": 1})
    journal.append({"number": 2})
    journal.close()
    reopened = Journal(tmp_path / "journal")
    assert [entry["number"] for entry in reopened.entries] == [0, 2]
    reopened.close()

"""A journal whose actions do not follow from each other is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from actstore.errors import DamagedError
from predictor.teach.actions import State
from predictor.teach.session import _replay

CREATE = {"do": "create", "category": "okapi"}
UNDO, REDO = {"do": "undo"}, {"do": "redo"}


def test_actions_of_a_journal_are_done_again() -> None:
    entries = [CREATE, {"do": "rename", "category": "okapi", "to": "zebra"}, UNDO, REDO, UNDO]
    assert [category["name"] for category in _replay(Path("journal"), entries, State()).state.to_json()] == ["okapi"]
    assert _replay(Path("journal"), [], State()).state.to_json() == []


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ([UNDO], 1),
        ([CREATE, REDO, CREATE], 2),
        ([CREATE, {"do": "rename", "category": "yak", "to": "gnu"}, {"do": "create", "category": "ibex"}], 2),
        ([CREATE, {"do": "fly"}], 2),
    ],
)
def test_the_line_that_does_not_follow_is_named(entries: list[dict[str, str]], line: int) -> None:
    with pytest.raises(DamagedError, match=f"journal: line {line} does not follow from those before it"):
        _replay(Path("journal"), entries, State())

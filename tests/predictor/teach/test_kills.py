"""A few kills at random moments; `python -m tests.bench.teach_kills` makes a hundred."""

from __future__ import annotations

from pathlib import Path

from tests.bench.teach_kills import kill_often


def test_no_acknowledged_action_is_missing_after_a_kill(tmp_path: Path) -> None:
    found = kill_often(tmp_path, kills=2, longest=0.6)
    assert found["answered"] > 0

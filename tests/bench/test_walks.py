"""Rows go a short way into a store and out of it; what lengthens it needs a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import walks


def test_rows_pass_eight_modules_to_the_disk_and_two_on_their_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    walks.draw_images(Path("photos"))
    with walks.walking(walks.is_rows) as build:
        walks.build()
    assert len(walks.to_disk(build)) <= 8, walks.to_disk(build)
    with walks.walking(walks.is_asked) as take:
        walks.take()
    assert list(take.passed) == ["actstore.split", "actstore.reading.mapped_rows"]

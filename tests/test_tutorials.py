"""Every block of the tutorials, and of how-to pages that need no data, runs in the order of its page, in a folder that
begins empty."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[1] / "docs"
PAGES = [*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "columns.md"]


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    for found in re.finditer(r"```(python|bash)\n(.*?)```", page.read_text(), re.DOTALL):
        yield found[1], found[2]


def run_command(line: str) -> None:
    from cli.actstore import main as actstore_main
    from cli.ppa import main as ppa_main

    tool, *arguments = shlex.split(line, comments=True)
    done = CliRunner().invoke({"actstore": actstore_main, "ppa": ppa_main}[tool], arguments)
    assert done.exit_code == 0, f"{line}\n{done.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    for language, text in blocks(page):
        if language == "bash":
            for line in filter(None, text.splitlines()):
                run_command(line)
        else:
            exec(compile(text, str(page), "exec"), scope)
    assert any(tmp_path.iterdir())

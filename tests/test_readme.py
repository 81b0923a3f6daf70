"""Every command and snippet of the README runs, in its order, on data small enough for a test; links lead somewhere.

Not run here: `make` and `pip install`, which set up an environment of their own, and `ppa demo` and `ppa teach`, which
have tests/cli/test_demo.py and test_ppa_teach.py.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import actstore
from predictor.training.phi import PRESETS
from tests.test_tutorials import blocks, run_command

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "README.md"]
# command -> options that make it short; they come last, so they replace what the README says
SHORT = {
    "ppa train": "--epochs 1 --batches 3",
    "ppa eval": "--draws 2 --shots 1,2",
    "ppa bench-inference": "--synthetic 500x32 --seconds 0.01 --backbone none --approximate none --no-fp32",
}


def shell_lines() -> Iterator[str]:
    for language, text in blocks(README):
        if language == "bash":
            yield from (line.split("  #")[0].strip() for line in text.splitlines())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images, one of new animals, a photo; a short training; no network from the internet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACTSTORE_OFFLINE", "1")
    monkeypatch.setitem(PRESETS, "paper", replace(PRESETS["paper"], epochs=1, batches=2))
    actstore.write_glyphs("photos", classes=40, per_class=5, val_per_class=3, size=32)
    novel = sorted(Path("photos/val").iterdir())[-2:]
    for source, name in zip(novel, ("okapi", "quokka"), strict=True):
        shutil.copytree(source, Path("new-animals") / name)
    for part in ("train", "val"):
        Path("photos", part, sorted(path.name for path in Path("photos", part).iterdir())[0]).rename(
            Path("photos", part, "okapi")
        )
    shutil.copy(next(novel[0].iterdir()), "a.jpg")  # what it is, its content says
    return tmp_path


def test_snippets(folder: Path) -> None:
    scope: dict[str, Any] = {}
    for language, text in blocks(README):
        if language == "python":
            exec(text, scope)
    assert len(scope["rows"]) == 5
    assert {"okapi", "quokka"} <= set(scope["classifier"].categories)
    assert {record["key"] for record in scope["results"].records} == {"phi2", "nn", "class-mean", "simple-shot"}


def test_commands(folder: Path) -> None:
    Path("photos").rename("imagenet")
    lines = [line for line in shell_lines() if line.startswith(("actstore ", "ppa ")) and "demo" not in line]
    assert len(lines) >= 4
    for line in lines:
        shortened = max((key for key in SHORT if line.startswith(key)), key=len, default="")
        run_command(f"{line} {SHORT.get(shortened, '')}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_modules_of_the_documents_exist(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"
    for module in re.findall(r"python -m (tests\.[a-z_.]+)", text):
        path = ROOT / module.rstrip(".").replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page.name} names {module}"
    for file in re.findall(r"`((?:actstore|predictor|baselines|cli|tests|tools|examples)/[\w/]+\.(?:py|sh))`", text):
        assert (ROOT / file).exists(), f"{page.name} names {file}"

"""Every command and snippet of the README runs, in its order, on data small enough for a test. In all documents links
lead somewhere, and commands have the options that they are shown with.

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
    actstore.write_glyphs("photos", classes=40, per_class=8, val_per_class=3, size=32)
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
    shutil.copytree("photos/train", "plain")  # a folder for each category, as the text says
    shutil.rmtree("photos")
    Path("plain").rename("photos")
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
    for link in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"
    for module in re.findall(r"python -m (tests\.[a-z_.]+)", text):
        path = ROOT / module.rstrip(".").replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page.name} names {module}"
    for file in re.findall(r"`((?:actstore|predictor|baselines|cli|tests|tools|examples)/[\w/]+\.(?:py|sh))`", text):
        assert (ROOT / file).exists(), f"{page.name} names {file}"


def shown_commands(text: str) -> Iterator[tuple[str, str, set[str]]]:
    """Tool, command and options of every command in a block of code or between backticks."""
    code = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    code += re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    for piece in code:
        joined = re.sub(r"\\\n\s*", " ", piece)
        for line in (part.split(" #")[0] for part in re.split(r"\n|&&|;", joined)):
            for found in re.finditer(r"(?:^|\s)(actstore|ppa) ([a-z][a-z-]*)(.*)", line):
                yield found[1], found[2], set(re.findall(r"(?<=\s)--[a-z][a-z0-9-]*", found[3]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_the_documents_have_these_options(page: Path) -> None:
    from cli.actstore import main as actstore_main
    from cli.ppa import main as ppa_main

    for tool, name, options in shown_commands(page.read_text()):
        group: Any = {"actstore": actstore_main, "ppa": ppa_main}[tool]
        command = group.get_command(None, name)
        assert command is not None, f"{page.name} shows {tool} {name}"
        known = {text for parameter in command.params for text in [*parameter.opts, *parameter.secondary_opts]}
        known |= {text for sub in getattr(command, "commands", {}).values() for one in sub.params for text in one.opts}
        assert options <= known | {"--help", "--debug"}, f"{page.name}: {tool} {name} has no {options - known}"

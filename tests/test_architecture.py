"""Imports point one way, heavy libraries stay in their place, and every command is documented."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("actstore", "predictor", "baselines", "cli")
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
ALLOWED = {
    "actstore": {"actstore"},
    "predictor": {"predictor", "actstore"},
    "baselines": {"baselines", "predictor", "actstore"},
    "cli": set(PACKAGES),
}
OPEN_TO_BASELINES = ("predictor.training", "predictor.protocol")
# library -> files that may import it, as prefixes of their path
HOMES = {
    "zarr": ("actstore/hierarchy.py",),
    "dask": ("actstore/statistics.py", "actstore/convert.py", "actstore/split.py", "actstore/cluster.py"),
    "distributed": ("actstore/cluster.py",),
    "obstore": ("actstore/buckets.py", "actstore/objects.py"),
    "faiss": ("actstore/search/",),
    # fonts for glyphs; every picture else is of predictor/figures
    "matplotlib": (
        "predictor/figures/",
        "predictor/drawing.py",
        "actstore/sources/glyph_drawing.py",
    ),
    "sklearn": ("predictor/tsne.py",),
    "scipy": ("predictor/evaluate.py",),
    "click": ("cli/",),
    "tqdm": ("cli/",),
}
LIGHT = (
    "actstore/spec.py",
    "actstore/classes.py",
    "actstore/sampling.py",
    "actstore/errors.py",
    "actstore/rows.py",
    "actstore/tasks.py",
)


def imports(file: Path, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(file.read_text())
    return {name.split(".")[0] for name in _modules(tree.body if top_level_only else list(ast.walk(tree)))}


def _modules(nodes: Iterable[ast.AST]) -> set[str]:
    """With dots, as they are imported."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
    return found


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_imports_point_one_way(file: Path) -> None:
    package = relative(file).split("/")[0]
    own = imports(file) & set(PACKAGES)
    assert own <= ALLOWED[package], f"{relative(file)} imports {own - ALLOWED[package]}"


@pytest.mark.parametrize("file", [f for f in FILES if relative(f).startswith("baselines/")], ids=relative)
def test_baselines_use_the_protocol_and_the_training_of_the_predictor_alone(file: Path) -> None:
    used = {name for name in _modules(ast.walk(ast.parse(file.read_text()))) if name.split(".")[0] == "predictor"}
    assert all(name.startswith(OPEN_TO_BASELINES) for name in used), f"{relative(file)} imports {used}"


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_libraries_stay_in_their_place(file: Path) -> None:
    for library in imports(file) & set(HOMES):
        assert relative(file).startswith(HOMES[library]), f"{relative(file)} imports {library}"


@pytest.mark.parametrize("name", LIGHT)
def test_planning_needs_neither_torch_nor_zarr(name: str) -> None:
    assert not imports(ROOT / name) & {"torch", "zarr", "dask"}


@pytest.mark.parametrize("file", [f for f in FILES if relative(f).startswith("cli/")], ids=relative)
def test_commands_import_heavy_libraries_only_when_run(file: Path) -> None:
    heavy = {"numpy", "torch", "zarr", "dask", "faiss", "matplotlib", "tqdm"}
    assert not imports(file, top_level_only=True) & heavy


def commands() -> list[tuple[str, click.Command]]:
    from cli.actstore import main as actstore_main
    from cli.ppa import main as ppa_main

    groups = (("actstore", actstore_main), ("ppa", ppa_main))
    return [(f"{tool} {name}", command) for tool, group in groups for name, command in group.commands.items()]


@pytest.mark.parametrize(("name", "command"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_has_help_an_example_json_and_a_line_in_the_readme(name: str, command: click.Command) -> None:
    assert command.help
    assert name in (command.epilog or ""), f"{name} --help shows no example"
    assert any("--json" in parameter.opts for parameter in command.params), f"{name} has no --json"
    assert re.search(rf"\b{name}\b", (ROOT / "README.md").read_text()), f"{name} is not in the README"

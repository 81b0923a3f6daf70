"""Imports point one way, rooms have ranks, heavy libraries stay in their place, and every command is documented."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("actstore", "predictor", "baselines", "cli")
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
# A module imports only from rooms that stand above its own; modules of one line may import each other.
RANKS = {
    "actstore": """
        errors
        spec
        storage compute parallel
        layout
        reading
        writing
        filters
        split store query creation convert
        streams
        statistics
        search
        analysis
        tables
        images
        backbones
        extraction
        audit
        upkeep
        bench
    """,
    "predictor": """
        protocol
        figures
        phi
        training
        classifier
        teach
        report
    """,
}
# The doors of the store: their methods hand on to rooms below their rank, imported when they are called.
DOORS = {"actstore/split.py", "actstore/store.py", "actstore/__init__.py"}
ALLOWED = {
    "actstore": {"actstore"},
    "predictor": {"predictor", "actstore"},
    "baselines": {"baselines", "predictor", "actstore"},
    "cli": set(PACKAGES),
}
FOR_BASELINES = {"protocol", "training", "figures"}  # what baselines may use of predictor
# library -> files that may import it, as prefixes of their path
HOMES = {
    "zarr": ("actstore/layout/zarr_arrays.py",),
    "dask": (
        "actstore/statistics/",
        "actstore/convert.py",
        "actstore/split.py",
        "actstore/parallel/cluster.py",
    ),
    "distributed": ("actstore/parallel/cluster.py",),
    "obstore": ("actstore/storage/",),
    "faiss": ("actstore/search/",),
    # fonts for glyphs; every picture else is of predictor/figures
    "matplotlib": (
        "predictor/figures/",
        "predictor/report/",
        "actstore/images/glyph_drawing.py",
    ),
    "sklearn": ("predictor/figures/tsne.py",),
    "scipy": ("predictor/protocol/evaluation.py", "actstore/analysis/"),
    "starlette": ("predictor/teach/",),
    "uvicorn": ("predictor/teach/",),
    "click": ("cli/",),
    "tqdm": ("cli/",),
}
LIGHT = (
    "actstore/spec.py",
    "actstore/layout/class_index.py",
    "actstore/streams/sampling.py",
    "actstore/errors.py",
    "predictor/protocol/tasks.py",
)


def relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def imported(file: Path, top_level_only: bool = False) -> Iterator[str]:
    """Dotted names of the modules that a file imports."""
    tree = ast.parse(file.read_text())
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def imports(file: Path, top_level_only: bool = False) -> set[str]:
    return {name.split(".")[0] for name in imported(file, top_level_only)}


def ranks(package: str) -> dict[str, int]:
    return {room: rank for rank, line in enumerate(RANKS[package].split("\n")) for room in line.split()}


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_imports_point_one_way(file: Path) -> None:
    package = relative(file).split("/")[0]
    own = imports(file) & set(PACKAGES)
    assert own <= ALLOWED[package], f"{relative(file)} imports {own - ALLOWED[package]}"


@pytest.mark.parametrize("file", [f for f in FILES if relative(f).split("/")[0] in RANKS], ids=relative)
def test_rooms_import_from_rooms_above_them(file: Path) -> None:
    package, room = file.relative_to(ROOT).with_suffix("").parts[:2]
    known, door = ranks(package), relative(file) in DOORS or (file.name == "__init__.py" and room == "__init__")
    for name in () if door else imported(file):
        parts = name.split(".")
        if parts[0] == package and len(parts) > 1 and parts[1] in known and parts[1] != room:
            assert known[parts[1]] <= known[room], f"{relative(file)} of rank {known[room]} imports {name}"


@pytest.mark.parametrize("package", RANKS)
def test_every_room_has_a_rank_and_says_what_lives_there(package: str) -> None:
    for folder in (path.parent for path in (ROOT / package).glob("*/*.py")):
        assert folder.name in ranks(package), f"{folder} has no rank"
        assert len((ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").splitlines()) >= 2, folder


def test_at_most_eight_modules_lie_in_the_hall() -> None:
    assert len(list((ROOT / "actstore").glob("*.py"))) <= 8


@pytest.mark.parametrize("file", [f for f in FILES if relative(f).startswith("baselines/")], ids=relative)
def test_baselines_use_the_protocol_and_the_training_loop_alone(file: Path) -> None:
    used = {name.split(".")[1] for name in imported(file) if name.startswith("predictor.")}
    assert used <= FOR_BASELINES, f"{relative(file)} imports predictor's {used - FOR_BASELINES}"


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_libraries_stay_in_their_place(file: Path) -> None:
    for library in imports(file) & set(HOMES):
        assert relative(file).startswith(HOMES[library]), f"{relative(file)} imports {library}"


@pytest.mark.parametrize("file", [f for f in FILES if not relative(f).startswith("actstore/storage/")], ids=relative)
def test_where_a_store_lies_is_asked_in_storage_alone(file: Path) -> None:
    for call in ast.walk(ast.parse(file.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "isinstance":
            kinds = {node.id for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)}
            paths = {kind for kind in kinds if kind.endswith("Path") or kind == "Place"}
            assert not paths, f"{relative(file)}:{call.lineno} asks for {paths}; ask the place for what it can do"


@pytest.mark.parametrize("file", FILES, ids=relative)
def test_asserts_tell_mypy_a_type_and_nothing_else(file: Path) -> None:
    """`python -O` runs none of them."""
    allowed = re.compile(r"[\w.]+ is not None|(not )?isinstance\([\w.]+, \w+\)")
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Assert):
            said = ast.unparse(node.test)
            assert allowed.fullmatch(said), f"{relative(file)}:{node.lineno} asserts {said}; raise an error instead"


@pytest.mark.parametrize("package", RANKS)
def test_tests_lie_in_the_rooms_of_what_they_test(package: str) -> None:
    folders = {folder.name for folder in (ROOT / "tests" / package).iterdir() if folder.is_dir()} - {"__pycache__"}
    assert folders <= set(ranks(package)), f"no room of {package}: {folders - set(ranks(package))}"


def test_opening_a_store_and_taking_rows_imports_neither_torch_nor_zarr(tmp_path: Path) -> None:
    import numpy as np

    import actstore

    actstore.from_arrays(tmp_path / "x.zarr", {"train": (np.ones((5, 8), np.float32), np.zeros(5, int))}, classes=["a"])
    code = "import sys, actstore; actstore.open(sys.argv[1])['train'].take([3, 1]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.zarr")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "zarr", "dask", "matplotlib", "xarray"} & set(done.stdout.split())


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

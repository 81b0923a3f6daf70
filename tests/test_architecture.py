"""Imports point one way, heavy libraries stay in their place, files stay short, and every command is documented.

What imports what is checked by import-linter, whose contracts are in pyproject.toml; here is what it cannot express.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

import actstore

ROOT = Path(__file__).parents[1]
PACKAGES = ("actstore", "predictor", "baselines", "cli")
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
FOLDERS = sorted(
    ".".join(file.parent.relative_to(ROOT).parts)
    for package in PACKAGES[:3]
    for file in (ROOT / package).rglob("__init__.py")
)
LONGEST = 370  # lines of a file
LONGEST_COMMAND = 120


def trees(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Files of these folders, parsed, by their path."""
    for file in FILES:
        name = file.relative_to(ROOT).as_posix()
        if name.startswith(folders):
            yield name, ast.parse(file.read_text())


def test_imports_keep_the_contracts() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run([sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_every_folder_says_what_lives_there() -> None:
    for package in ("actstore", "predictor"):
        for file in (ROOT / package).glob("*/__init__.py"):
            assert len((ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()) >= 2, file


def test_tests_lie_in_folders_of_what_they_test() -> None:
    for package in ("actstore", "predictor"):
        folders = {path.name for path in (ROOT / "tests" / package).iterdir() if path.is_dir()} - {"__pycache__"}
        assert folders <= {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}


def test_files_are_short() -> None:
    long = {}
    for file in FILES:
        name, text = file.relative_to(ROOT).as_posix(), file.read_text()
        is_command = name.startswith("cli/")
        lines = len(text.splitlines()) - (0 if is_command else documented_lines(text))
        if lines > (LONGEST_COMMAND if is_command else LONGEST):
            long[name] = lines
    assert not long


def documented_lines(text: str) -> int:
    """Lines of docstrings: what a public name takes and gives may be said at length."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef)
    bodies = (node.body for node in ast.walk(ast.parse(text)) if isinstance(node, owners) and ast.get_docstring(node))
    return sum((body[0].end_lineno or 0) - body[0].lineno + 1 for body in bodies)


def test_commands_import_public_names_alone() -> None:
    """A package says in `__all__` what others may use."""
    for name, tree in trees("cli/"):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                deep = {
                    alias.name for alias in node.names if alias.name.split(".")[0] in PACKAGES and "." in alias.name
                }
                assert not deep, f"{name} imports {deep}; import names from the package"
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES[:3]:
                public = {*getattr(importlib.import_module(str(node.module)), "__all__", ())}
                hidden = {alias.name for alias in node.names} - public
                assert not hidden, f"{name} imports {hidden}, which is not in __all__ of {node.module}"


@pytest.mark.parametrize("package", FOLDERS)
def test_public_names_are_there_and_listed(package: str) -> None:
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", ()):
        assert getattr(module, name) is not None
        assert not isinstance(getattr(module, name), type(sys)), f"{package}.{name} is hidden by a module of its name"
        assert name in dir(module)


def test_where_a_store_lies_is_asked_in_storage_alone() -> None:
    for name, tree in trees(*PACKAGES):
        for call in ast.walk(tree) if not name.startswith("actstore/storage/") else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "isinstance":
                kinds = {node.id for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)}
                paths = {kind for kind in kinds if kind.endswith("Path") or kind == "Place"}
                assert not paths, f"{name}:{call.lineno} asks for {paths}; ask the place for what it can do"


def test_asserts_tell_mypy_a_type_and_nothing_else() -> None:
    """`python -O` runs none of them."""
    allowed = re.compile(r"[\w.]+ is not None|(not )?isinstance\([\w.]+, \w+\)")
    for name, tree in trees(*PACKAGES):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                said = ast.unparse(node.test)
                assert allowed.fullmatch(said), f"{name}:{node.lineno} asserts {said}; raise an error instead"


def test_opening_a_store_and_taking_rows_imports_neither_torch_nor_zarr(tmp_path: Path) -> None:
    rows = np.ones((5, 8), np.float32)
    actstore.from_arrays(tmp_path / "x.zarr", {"train": (rows, np.zeros(5, int))}, classes=["a"])
    code = (
        "import sys, actstore; store = actstore.open(sys.argv[1]); split = store['train']; split.take([3, 1]); "
        "split.query(classes=['a'], rows='1:3'); repr(store), store._repr_html_(), repr(split); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.zarr")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "zarr", "dask", "matplotlib", "xarray", "tqdm"} & set(done.stdout.split())


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_packages_are_imported_without_heavy_libraries_and_their_names_with_them() -> None:
    heavy = {"numpy", "torch", "zarr", "dask", "faiss", "matplotlib", "tqdm"}
    assert not heavy & modules_after("import actstore, baselines, predictor")
    assert "torch" in modules_after("import predictor; predictor.Classifier")


def test_predicting_photos_imports_neither_zarr_nor_dask_nor_a_search_library() -> None:
    code = "import predictor.classifier.classifier, predictor.classifier.predictions, actstore.backbones.architectures"
    assert not {"zarr", "dask", "distributed", "faiss", "matplotlib", "xarray", "scipy"} & modules_after(code)


@pytest.mark.parametrize("tool", ["actstore", "ppa"])
def test_help_imports_no_heavy_library(tool: str) -> None:
    code = f"import sys; from cli.{tool} import main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"numpy", "torch", "zarr", "dask", "faiss", "matplotlib", "tqdm"} & set(done.stdout.split())


def commands() -> list[tuple[str, click.Command]]:
    from cli.actstore import main as actstore_main
    from cli.ppa import main as ppa_main

    groups = (("actstore", actstore_main), ("ppa", ppa_main))
    return [(f"{tool} {name}", command) for tool, group in groups for name, command in group.commands.items()]


def test_every_command_has_help_an_example_and_json() -> None:
    for name, command in commands():
        assert command.help, name
        assert name in (command.epilog or ""), f"{name} --help shows no example"
        assert any("--json" in parameter.opts for parameter in command.params), f"{name} has no --json"

"""Benchmarks run rarely: what they import, inside of functions too, must be there all the same."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

OURS = ("actstore", "predictor", "baselines", "cli", "tests")
FILES = sorted(Path(__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_name_that_a_benchmark_imports_exists(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            assert [alias.name for alias in node.names if not _exists(node.module, alias.name)] == [], node.module


def _exists(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True

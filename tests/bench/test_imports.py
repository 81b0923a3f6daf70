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
    missing = []
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.module.split(".")[0] not in OURS:
            continue
        module = importlib.import_module(node.module)
        for alias in node.names:
            if not hasattr(module, alias.name) and not _is_module(f"{node.module}.{alias.name}"):
                missing.append(f"{node.module}.{alias.name}")
    assert missing == []


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True

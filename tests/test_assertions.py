"""Every test asserts something, by itself or through a helper of the tests that does."""

from __future__ import annotations

import ast
from pathlib import Path

TREES = {path: ast.parse(path.read_text()) for path in sorted(Path(__file__).parent.rglob("*.py"))}
DEFINITIONS = [
    node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
]


def asserts(definition: ast.AST, helpers: set[str]) -> bool:
    for node in ast.walk(definition):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            if name in helpers or name.startswith("assert_"):
                return True
    return False


def test_no_test_only_runs() -> None:
    helpers, before = {"raises", "warns"}, 0
    while len(helpers) > before:  # helpers of helpers
        before = len(helpers)
        helpers |= {node.name for node in DEFINITIONS if not node.name.startswith("test_") and asserts(node, helpers)}
    silent = [
        f"{path.name}: {node.name}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not asserts(node, helpers)
    ]
    assert not silent, silent
    assert not asserts(ast.parse("def test_x(): run()"), set())

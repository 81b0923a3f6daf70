"""Lines that only a machine with an accelerator would reach, and which of them no test executes where there is none.

python -m tests.bench.gpu_coverage; needs the package coverage. They are all lines of MODULES, and everywhere else the
statements that ask what a device can do or compare its name, with what stands under them.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("actstore", "predictor", "baselines", "cli")
MODULES = ("actstore/compute/device.py",)
ABILITIES = {
    "CardPlan", "GpuSearch", "SideStream", "_gpu_number", "card_of_process", "certified", "count_devices",
    "empty_on_host", "free_memory", "gpu_part", "has_bfloat16", "has_gpu", "has_half", "has_streams",
    "is_accelerator", "most_precise", "name_device", "pin_memory", "plan_card", "require_gpu", "sent_ahead",
    "steps_per_reading", "synchronise",
}  # fmt: skip
KINDS = ("cuda", "mps", "xpu", "gpu")
TESTS = (
    "tests/test_trainings_on_card.py", "tests/test_inference_on_card.py", "tests/actstore/compute/test_device.py",
    "tests/actstore/streams/test_class_batches_on_card.py", "tests/actstore/search/test_search_flat.py",
    "tests/actstore/search/test_search_engines.py",
)  # fmt: skip


def lines_for_cards(file: Path) -> set[int]:
    """First lines of the statements of a file that name an ability, and of those within an `if` or `def` that does."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if (isinstance(node, ast.If | ast.With) and _names(_head(node))) or (_is_simple(node) and _names([node])):
            found |= {one.lineno for one in ast.walk(node) if isinstance(one, ast.stmt)}
        if isinstance(node, ast.FunctionDef) and node.name in ABILITIES:
            found |= {one.lineno for one in node.body if not _is_text(one)}
        if isinstance(node, ast.ClassDef) and node.name in ABILITIES:
            found |= {one.lineno for one in ast.walk(node) if isinstance(one, ast.stmt) and not _is_text(one)}
    return found


def _head(node: ast.If | ast.With) -> list[ast.AST]:
    return [node.test] if isinstance(node, ast.If) else list(node.items)


def _is_simple(node: ast.AST) -> bool:
    compound = ast.If | ast.For | ast.While | ast.With | ast.Try | ast.FunctionDef | ast.ClassDef
    return isinstance(node, ast.stmt) and not isinstance(node, compound | ast.Import | ast.ImportFrom)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _names(nodes: list[ast.AST]) -> bool:
    named = {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}
    named |= {one.attr for node in nodes for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    texts = [one.value for node in nodes for one in ast.walk(node) if isinstance(one, ast.Constant)]
    return bool(named & ABILITIES) or any(text in KINDS for text in texts)


def unexecuted(folder: Path) -> Iterator[tuple[str, int, list[int]]]:
    """(file, how many lines, those that no test executes)."""
    import coverage

    data, sources = folder / "coverage", ",".join(PACKAGES)
    run = [
        sys.executable,
        "-m",
        "coverage",
        "run",
        f"--data-file={data}",
        "--concurrency=thread",
        f"--source={sources}",
    ]
    subprocess.run([*run, "-m", "pytest", "-q", *TESTS], cwd=ROOT, check=True)
    measured = coverage.Coverage(data)
    measured.load()
    for file in sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        _, statements, _, missing, _ = measured.analysis2(str(file))
        wanted = set(statements) if name in MODULES else lines_for_cards(file) & set(statements)
        if wanted:
            yield name, len(wanted), sorted(set(missing) & wanted)


def main() -> int:
    total, left = 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, count, missing in unexecuted(Path(scratch)):
            total, left = total + count, left + len(missing)
            print(f"{name}: {count} lines for accelerators, not executed: {', '.join(map(str, missing)) or 'none'}")
    print(f"{left} of {total} lines for accelerators are executed by no test")
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The notebooks of examples/ run in a kernel of their own, as a reader runs them, and find what is in their data."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parents[1] / "examples"
NEEDS = {
    "probe_and_map": [],
    "networks_compared": ["rsatoolbox"],
    "sql": ["duckdb"],
    "audit_with_cleanlab": ["cleanlab", "datasets"],
}


def read(name: str) -> Any:
    return pytest.importorskip("nbformat").read(FOLDER / f"{name}.ipynb", 4)


def run(name: str, folder: Path) -> str:
    """All that its cells print and show as text."""
    for library in NEEDS[name]:  # the kernel imports it, not this process
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    notebook = read(name)
    client = pytest.importorskip("nbclient").NotebookClient
    client(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def test_every_notebook_is_run_and_indexed() -> None:
    names = {file.stem for file in FOLDER.glob("*.ipynb")}
    assert names == {"mission", *NEEDS}  # test_examples.py runs the mission
    index = (FOLDER / "README.md").read_text()
    assert all(f"({name}.ipynb)" in index for name in names)


@pytest.mark.parametrize("name", NEEDS)
def test_they_are_short_and_use_public_names_alone(name: str) -> None:
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    assert len(cells) <= 12
    assert not any(cell.outputs for cell in cells)
    code = "\n".join(cell.source for cell in cells)
    assert "import actstore" in code
    assert not re.search(r"(from|import) (actstore|predictor|baselines)\.", code)


def test_a_probe_and_a_map(tmp_path: Path) -> None:
    said = run("probe_and_map", tmp_path)
    right = re.search(r"([\d.]+)% of 300 rows of val", said)
    assert right is not None
    assert float(right[1]) > 20  # chance is 3.3%
    assert "<Map of 300 rows" in said
    assert "map.html" in said


def test_networks_compared(tmp_path: Path) -> None:
    said = run("networks_compared", tmp_path)
    off = re.search(r"largest difference from rsatoolbox: ([\d.e-]+)", said)
    assert off is not None
    assert float(off[1]) < 1e-5


def test_sql(tmp_path: Path) -> None:
    said = run("sql", tmp_path)
    assert "photo0007.jpg" in said
    assert said.rstrip().endswith("True)")  # SQL and `where` choose the same rows


def test_an_audit_with_cleanlab(tmp_path: Path) -> None:
    said = run("audit_with_cleanlab", tmp_path)
    found = re.search(r"(\d+) labels doubted, (\d+) of them wrong", said)
    assert found is not None
    doubted, hits = int(found[1]), int(found[2])
    assert hits >= 30  # of 40
    assert hits >= 0.7 * doubted
    assert "furthest outlier: 5 " in said
    assert "nearest pair: [17, 1200]" in said

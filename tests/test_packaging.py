"""What a package index, a citation and a workflow say of the project agrees with the project."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml

import actstore

ROOT = Path(__file__).parents[1]


def test_the_version_is_said_once() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert version("actstore") == actstore.__version__ == cited["version"]


def test_the_workflow_runs_what_ci_runs_on_every_supported_python() -> None:
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert job["steps"][-1]["run"] == "bash .ci/run"


def test_hooks_before_a_commit_use_the_tools_that_ci_uses() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in repository["hooks"]}
    assert tools == {"ruff", "mypy"}
    assert all(f".venv/bin/{tool}" in (ROOT / ".ci/run").read_text() for tool in tools)


def test_a_wheel_holds_every_file_that_the_code_reads() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for package in ("actstore", "predictor", "baselines", "cli"):
        packed = {file for pattern in patterns.get(package, ()) for file in (ROOT / package).glob(pattern)}
        files = {file for file in (ROOT / package).rglob("*") if file.is_file() and "__pycache__" not in file.parts}
        assert {file for file in files - packed if file.suffix not in (".py", ".c", ".h", ".so")} == set()

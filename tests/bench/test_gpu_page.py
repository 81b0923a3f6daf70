"""The page of `make gpu`, made of figures of a CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from actstore.errors import InvalidInputError
from cli.ppa import main
from tests.bench import gpu, gpu_checks
from tests.bench.gpu_page import to_page

two = gpu_checks.Bench.two_processes

ROOT = Path(__file__).parents[2]
QUICK = ("--seconds", "0.01", "--backbone", "small", "--threads", "1", "--approximate", "none", "--no-fp32")


def figures(out: Path, batch: int) -> list[dict[str, object]]:
    arguments = ["bench-inference", "--synthetic", "1500x32", *QUICK, "--batch", str(batch), "--out", str(out)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    found: list[dict[str, object]] = json.loads(out.read_text())
    return found


def test_the_page_sets_this_machine_beside_the_paper(tmp_path: Path) -> None:
    results = figures(tmp_path / "bench.json", 32)
    page = to_page(results, {"GPU, driver, memory": "none, none, none", "torch": "2"}, "3 passed in 1.00s")
    lines = page.splitlines()
    assert "| paper, Tesla K40M | 37.867 | 6.83 | 5.54 | 45 GB |" in lines
    assert sum(line.startswith("| here, exact NN, ours, fp16 rows |") for line in lines) == 1
    assert all(str(one["name"]) in page for one in results)
    assert "- GPU, driver, memory: none, none, none" in lines
    assert "- tests marked `gpu`: 3 passed in 1.00s" in lines


def test_figures_at_another_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"at batch 32, got 0 and 0; run ppa bench-inference with --batch 32"):
        to_page(figures(tmp_path / "bench.json", 2), {}, "")


def test_all_of_it_runs_on_a_simulated_card(
    card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for two processes, which start without it."""
    monkeypatch.setattr(gpu_checks.Bench, "two_processes", lambda self: ("left out", None))
    page = tmp_path / "report.md"
    assert gpu.main([str(page), "--device", "sim", "--quick"]) == 0, capsys.readouterr().out
    text = page.read_text()
    assert text.count("| as it must be |") == 8
    for path in ("streamed against resident", "epoch of pretrain", "Triplet", "build", "faiss on the card", "eval"):
        assert path in text


def test_two_processes_on_the_cpu(tmp_path: Path) -> None:
    found, passed = gpu_checks.Bench(tmp_path, "cpu", gpu_checks.QUICK).two_processes()
    assert passed, found


def test_a_path_that_fails_is_said_and_the_others_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = gpu_checks.Bench(tmp_path, "cpu", gpu_checks.QUICK)
    monkeypatch.setattr(bench, "checks", lambda: {"a": lambda: [][1], "b": lambda: ("fine", True)})
    assert [(one.name, one.passed) for one in bench.run()] == [("a", False), ("b", True)]


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")
@pytest.mark.parametrize("command", [("make", "gpu"), (sys.executable, "-m", "tests.bench.gpu")])
def test_without_a_gpu_it_stops_with_one_line(command: tuple[str, ...]) -> None:
    # as from a shell: a make that was started by `make test` would name its folder
    plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "make gpu needs an NVIDIA GPU, but nvidia-smi finds none here; nothing was run" in done.stderr.splitlines()
    assert not done.stdout

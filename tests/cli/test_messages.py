"""What people read: in any encoding, on a full disk, in a log, and where a result is not what was asked for."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

import actstore
from actstore import progress
from actstore.layout.ledger import decode_chunk, decode_units
from actstore.search.indexing import build_index
from actstore.spec import StoreSpec
from cli.actstore import main

Run = Callable[..., Any]


def run(*arguments: Any, code: int = 0) -> click.testing.Result:
    result = click.testing.CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that no index can tell apart by a few coordinates."""
    rows = np.random.default_rng(0).random((1200, 32), dtype=np.float32)
    path = tmp_path_factory.mktemp("uniform") / "u.zarr"
    actstore.from_arrays(path, {"train": (rows, np.zeros(1200, int))}, classes=["łódź 猫 😀"])
    return path


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_letters_that_a_terminal_lacks_are_no_error(uniform: Path, encoding: str) -> None:
    command = [sys.executable, "-c", "from cli.actstore import main; main()", "query", str(uniform), "--limit", "1"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": os.pathsep.join(sys.path)}
    shown = subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode(encoding)
    assert ("łódź" in shown) == (encoding == "utf-8")
    assert "1,200 rows" in shown
    output = subprocess.run([*command, "--json"], env=environment, capture_output=True, check=True).stdout
    assert json.loads(output.decode(encoding))["rows"][0]["class"] == "łódź 猫 😀"


def test_an_index_that_misses_its_recall_says_so(uniform: Path) -> None:
    missed = run("index", uniform, "--kind", "ivf", "--dims", 2, "--refine", 1, "--json", code=1)
    assert json.loads(missed.stdout)["recall_reached"] is False
    assert "WARNING: the ivf index finds the nearest row of" in missed.stderr
    assert "95.0% were asked for; it is kept and can be used" in missed.stderr
    assert run("search", uniform, "--row", 3, "-k", 2, "--method", "ivf").stdout.count("\n") == 3
    reached = run("index", uniform, "--kind", "ivf", "--dims", 32, "--recall", 0.5, "--json")
    assert json.loads(reached.stdout)["recall_reached"] is True
    assert "WARNING" not in reached.stderr


def test_more_cells_are_visited_where_the_first_hold_too_few_rows(uniform: Path) -> None:
    split = actstore.open(uniform)["train"]
    engine = build_index(split, "ivf", recall=0.01, refine=1)
    scores, rows = engine.search(split.take([0, 1, 2]), 600, effort=1)
    assert rows.shape == (3, 600)
    assert all(len(set(line)) == 600 for line in rows.tolist())
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("kind", ["bounded", "ivf"])
def test_a_full_disk_is_named(uniform: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    import faiss

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write_index(*_: Any) -> None:
        raise RuntimeError("Error in void faiss::…: write error in x: 5 != 9 (No space left on device)\nmore")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(faiss, "write_index", write_index)
    said = run("index", uniform, "--kind", kind, "--recall", 0.01, code=1).stderr
    assert "the disk is full; free some space and run the same command again" in said
    assert said.count("Error: ") == 1


def test_norms_are_not_kept_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    from actstore.search import index_files as beside

    def save(*_: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(beside, "save", save)
    rows = np.random.default_rng(0).random((20, 8), dtype=np.float32)
    actstore.from_arrays(tmp_path / "x.zarr", {"train": (rows, np.zeros(20, int))}, classes=["a"])
    assert "rank" in run("search", tmp_path / "x.zarr", "--row", 1, "-k", 2).stdout


def test_a_log_gets_whole_lines_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress.bar("quick", 3, "rows", True) as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    with progress.bar("train", 5000, "steps", True) as bar:
        bar.set_postfix_str("loss 0.1")
        bar.update(1200)
        bar.update(None)
    lines = capsys.readouterr().err
    assert "\r" not in lines
    assert lines.startswith("train: 1,200 of 5,000 steps, ")
    assert lines.splitlines()[0].endswith("/s, 0 s left, loss 0.1")
    assert len(lines.splitlines()) == 2


def test_the_time_left_counts_what_this_run_has_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that goes on at step 900 of 1,000 does not seem 900 steps faster."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.SplitBars("train", "steps", True) as bars:
        bars("phi1", 900, 1000)
        for done in (910, 920):
            now += 20
            bars("phi1", done, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "train phi1: 910 of 1,000 steps, 0.5/s, 3 min left",
        "train phi1: 920 of 1,000 steps, 0.5/s, 3 min left",
    ]


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0 s"), (99, "99 s"), (720, "12 min"), (11_100, "3 h 05 min")])
def test_a_span_of_time(seconds: float, shown: str) -> None:
    assert progress.time_span(seconds) == shown


def test_a_run_of_the_codes_preset_repeated_with_the_papers(here: Path, ppa: Run) -> None:
    train = ("train", "--phi", "phi2", "--epochs", 1, "--batches", 2, "--out", "runs/code")
    ppa(*train, "--preset", "code")
    said = ppa(*train, code=1).stderr
    assert "runs/code/model.safetensors belongs to another training: config " in said
    assert "repeat the options of that one, choose another --out, or discard it with restart=True (--restart)" in said


@pytest.mark.parametrize("inner", [None, 4])
def test_a_truncated_chunk_is_called_that(inner: int | None) -> None:
    spec = StoreSpec(("a",), 16, chunk_rows=128, shard_inner_rows=inner)
    with pytest.raises(ValueError, match=r"it has 513 bytes, expected .*: it is truncated"):
        decode_chunk(spec, np.zeros(513, np.uint8))
    with pytest.raises(ValueError, match="it has 513 bytes, which is no multiple of 104: it is truncated"):
        decode_units(np.zeros(513, np.uint8), 100)

"""`actstore knn`: a graph in a file, killed and resumed, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from scipy.sparse import load_npz

import actstore
from cli.actstore import main


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> actstore.Split:
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).standard_normal((200, 8)).astype("f4")
    np.save("vectors.npy", values[:20])
    actstore.from_arrays("q.zarr", {"val": (values[:30], None)})
    return actstore.from_arrays("x.zarr", {"train": (values, None)})["train"]


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["knn", *arguments])
    assert done.exit_code == code, done.output
    return done


def test_the_graph_of_a_store(store: actstore.Split) -> None:
    assert "200 rows" in run("x.zarr", "g.npz", "-k", "4").stdout
    np.testing.assert_array_equal(load_npz("g.npz").indices.reshape(200, 4), actstore.knn(store, 4).rows)
    assert "g.npz exists" in run("x.zarr", "g.npz", "-k", "3", code=1).stderr
    run("x.zarr", "g.npz", "-k", "3", "--force")
    assert not Path("g.npz.parts").exists()


@pytest.mark.parametrize(("queries", "count"), [("vectors.npy", 20), ("q.zarr", 30), ("q.zarr/val", 30)])
def test_ground_truth_for_queries(queries: str, count: int) -> None:
    result = json.loads(run("x.zarr", "t.parquet", "--queries", queries, "-k", "5", "--json").stdout)
    assert (result["queries"], result["edges"], result["without_neighbours"]) == (count, 5 * count, 0)


@pytest.mark.parametrize("command", ["knn two.zarr/val g.npz -k 3", "search two.zarr/val --row 0", "means two.zarr/val",
                                     "query two.zarr/val", "map two.zarr/val --method pca -k 3"])  # fmt: skip
def test_a_split_is_named_by_its_path(command: str) -> None:
    values, labels = np.random.default_rng(2).standard_normal((60, 8)).astype("f4"), np.zeros(30, int)
    actstore.from_arrays("two.zarr", {"train": (values[30:], labels), "val": (values[:30], labels)}, classes=["a"])
    done = CliRunner().invoke(main, [*command.split(), "--json"])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["store"], result["split"]) == ("two.zarr", "val")
    twice = CliRunner().invoke(main, [*command.split(), "--split", "train"])
    assert twice.exit_code == 2
    assert "two.zarr/val is split val already" in twice.output


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_same_file(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((16_000, 64)).astype("f4")
    actstore.from_arrays("many.zarr", {"train": (values, None)})
    run("many.zarr", "whole.npz")
    code = "from cli.actstore import main; main()"
    child = subprocess.Popen([sys.executable, "-c", code, "knn", "many.zarr", "resumed.npz"], cwd=tmp_path)
    parts = tmp_path / "resumed.npz.parts"
    while child.poll() is None and not (parts.exists() and len(list(parts.glob("*.safetensors"))) >= 1):
        time.sleep(0.01)
    if child.poll() is None:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert parts.exists()
    run("many.zarr", "resumed.npz")
    assert Path("resumed.npz").read_bytes() == Path("whole.npz").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["x.zarr", "g.txt"], 2, "g.txt"),
        (["x.zarr", "g.npz", "-k", "200"], 1, "199"),
        (["x.zarr", "g.npz", "--queries", "none.npy"], 1, "none.npy"),
        (["x.zarr", "g.npz", "--queries", "none.zarr"], 1, "none.zarr"),
        (["x.zarr", "mine.npz"], 1, "mine.npz"),
        (["none.zarr", "g.npz"], 1, "none.zarr"),
    ],
)
def test_bad_input_is_refused_by_name(arguments: list[str], code: int, named: str) -> None:
    np.savez("mine.npz", values=np.ones(3))
    assert named in run(*arguments, code=code).output

"""`actstore compare`: table, JSON, file and heat map; what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import actstore
from cli.actstore import main


@pytest.fixture(autouse=True)
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    rows = random.standard_normal((60, 6)).astype("f4")
    other = (rows @ random.standard_normal((6, 9))).astype("f4")
    ids = [f"{row}.jpg" for row in range(60)]
    actstore.from_arrays("a.zarr", {"train": (rows, None, ids), "deep": (other[:, :6], None, ids)})
    actstore.from_arrays("b.zarr", {"train": (other[:50], None, ids[:50])})


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["compare", *arguments])
    assert done.exit_code == code, done.output
    return done


def test_a_table_says_how_many_rows_align() -> None:
    lines = run("a.zarr", "b.zarr", "--resamples", "20").stdout.splitlines()
    assert lines[0].startswith("50 rows in common")
    assert lines[2].split()[:4] == ["one", "other", "measure", "value"]
    assert [line.split()[2] for line in lines[3:8]] == ["cka", "procrustes", "rsa-spearman", "rsa-pearson", "knn"]
    assert "10 of 60" in lines[8]


def test_json_file_and_heat_map_agree(tmp_path: Path) -> None:
    paths = ["a.zarr/train", "a.zarr/deep", "b.zarr"]
    options = ["--measure", "cka", "--measure", "knn", "-k", "3", "--resamples", "10"]
    result = json.loads(run(*paths, *options, "-o", "t.csv", "--chart", "t.png", "--json").stdout)
    assert len(result["similarities"]) == 6
    assert result["settings"]["k"] == 3
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[0] == "one,other,measure,value,low,high"
    assert [float(line.split(",")[3]) for line in lines[1:]] == [each["value"] for each in result["similarities"]]
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    run(*paths, *options, "-o", "t.csv", "--chart", "t.png")  # may be replaced by another of its kind


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["a.zarr"], 2, "two"),
        (["a.zarr", "b.zarr", "-o", "t.txt"], 2, "t.txt"),
        (["a.zarr", "b.zarr", "--chart", "t.pdf"], 2, "t.pdf"),
        (["a.zarr", "b.zarr", "--measure", "cca"], 2, "cca"),
        (["a.zarr", "nothing.zarr"], 1, "nothing.zarr"),
        (["a.zarr", "b.zarr/val"], 1, "val"),
        (["a.zarr", "a.zarr"], 1, "a.zarr"),
        (["a.zarr", "b.zarr", "-o", "mine.csv"], 1, "mine.csv"),
        (["a.zarr", "b.zarr", "-o", "b.zarr/t.csv"], 1, "t.csv"),
    ],
)
def test_bad_input_is_refused_by_name(arguments: list[str], code: int, named: str) -> None:
    Path("mine.csv").write_text("my own figures\n")
    assert named in run(*arguments, code=code).output

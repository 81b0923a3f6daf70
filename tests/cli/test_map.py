"""`actstore map`: the page, the table, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import actstore
from cli.actstore import main


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> actstore.Split:
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).standard_normal((60, 8)).astype("f4")
    made = actstore.create("x.zarr", classes=["ant", "bee"], dim=8)
    with made.writer("train") as writer:
        writer.append(values, np.arange(60) % 2, None, {"area": np.arange(60)})
    return made["train"]


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["map", "x.zarr", *arguments])
    assert done.exit_code == code, done.output
    return done


def test_a_page_and_a_table() -> None:
    result = json.loads(run("--method", "pca", "--parquet", "m.parquet", "--json").stdout)
    assert (result["output"], result["points"], result["method"], result["notes"]) == ("map.html", 60, "pca", [])
    assert result["bytes"] == Path("map.html").stat().st_size
    assert Path("m.parquet").exists()
    assert "map.html exists" in run("--method", "pca", code=1).stderr
    before = Path("map.html").read_bytes()
    run("--method", "pca", "--force")
    assert Path("map.html").read_bytes() == before


def test_some_rows_of_it() -> None:
    arguments = [
        "--method",
        "pca",
        "--where",
        "area < 40",
        "--class",
        "bee",
        "--points",
        "7",
        "--color",
        "area",
        "--json",
    ]
    result = json.loads(run(*arguments).stdout)
    assert (result["points"], result["rows"]) == (7, 60)
    assert any("7 of 20" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--out", "x.png"], 2, "x.png"),
        (["--parquet", "x.csv"], 2, "x.csv"),
        (["--color", "size"], 1, "size"),
        (["--points", "500001"], 2, "500001"),
        (["--split", "val"], 1, "val"),
        (["--where", "class = wasp"], 1, "wasp"),
        (["--where", "area > 99"], 1, "rows"),
        (["--images", "none"], 2, "none"),
        (["--out", "x.zarr/m.html"], 1, "x.zarr/m.html"),
    ],
)
def test_bad_input_is_refused_by_name(arguments: list[str], code: int, named: str) -> None:
    assert named in run(*arguments, "--method", "pca", code=code).output
    assert not Path("map.html").exists()

"""The commands as a user runs them: results on stdout, one clear line for an error, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

import actstore
from cli.actstore import main

VALUES = np.random.default_rng(0).random((400, 16), dtype=np.float32)


def run(*arguments: Any, code: int = 0) -> click.testing.Result:
    result = click.testing.CliRunner().invoke(main, [str(one) for one in arguments], standalone_mode=True)
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments: Any, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).stdout)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACTSTORE", raising=False)
    np.save("features.npy", VALUES)
    Path("labels.txt").write_text("".join(f"{'cat' if row < 100 else 'dog'}\n" for row in range(400)))
    run("import", "features.npy", "--labels", "labels.txt", "--chunk-rows", 128)
    return tmp_path / "features.zarr"


def test_import_info_means_query(store: Path) -> None:
    facts = run_json("info", store)
    assert facts["splits"][0]["rows"] == 400
    assert facts["splits"][0]["complete"]
    assert facts["splits"][0]["mapped"]
    assert run_json("info", "--classes")["class_rows"] == {"train": {"cat": 100, "dog": 300}}
    assert "128 rows" in run("info", store).stdout
    assert run_json("means", store, "--output", "means.npy")["fewest_rows"] == 100
    np.testing.assert_allclose(np.load("means.npy")[0], VALUES[:100].mean(0, dtype=float), rtol=1e-5)
    found = run_json("query", store, "--class", "dog", "--rows", "90:110")
    assert found["count"] == 10
    assert found["rows"][0] == {"row": 100, "class": "dog", "id": "100"}
    run("query", "--class", "cat", "--output", "rows.npy", "--limit", 1)
    assert len(np.load("rows.npy")) == 100


def test_what_a_network_was_trained_on_is_recorded(store: Path) -> None:
    def trained() -> Any:
        return actstore.open(store).spec.provenance.get("trained_classes")

    assert trained() is None
    Path("seen.txt").write_text("owl\neel\n")
    Path("split.json").write_text(json.dumps({"base": ["cat"], "novel": ["owl"]}))
    for file, expected in (("seen.txt", ["owl", "eel"]), ("split.json", ["cat"])):
        run("import", "features.npy", "--labels", "labels.txt", "--chunk-rows", 128, "--trained-on", file)
        assert trained() == expected
    build = ("build", "glyphs:3x2x1", "g.zarr", "--backbone", "small", "--workers", 0)
    run(*build, "--random-weights")
    assert actstore.open(Path("g.zarr")).spec.provenance["trained_classes"] == []


def test_export_append_verify_repair(store: Path) -> None:
    run("export", store, "cats.npz", "--class", "cat")
    assert np.load("cats.npz")["activations"].shape == (100, 16)
    np.save("more.npy", VALUES[:5])
    Path("more.txt").write_text("owl\n" * 5)
    assert run_json("append", "more.npy", store, "--labels", "more.txt")["rows_added"] == 5
    assert "nothing added" in run("append", "more.npy", store, "--labels", "more.txt").stdout
    assert "every chunk is whole" in run("verify", store).stdout
    chunk = store / "train/activations/c/2/0"
    chunk.write_bytes(chunk.read_bytes()[:-3])
    broken = run_json("verify", store, code=1)
    assert [(fault["kind"], fault["chunk"]) for fault in broken["faults"]] == [("truncated", 2)]
    assert "repaired" in run("verify", store, "--repair").stdout
    assert run_json("verify", store)["faults"] == []


def test_synth_and_resume(tmp_path: Path) -> None:
    arguments = ("synth", tmp_path / "s.zarr", "--rows", 500, "--dim", 32, "--classes", 5)
    assert run_json(*arguments)["rows"] == 500
    run(*arguments)
    error = run(*arguments[:-1], 6, code=1).stderr
    assert "another origin" in error


ERRORS: dict[str, tuple[list[str], int, str]] = {
    "no store": (["info", "nothing.zarr"], 1, "nothing.zarr does not exist"),
    "no split": (["means", "features.zarr", "--split", "test"], 1, "no split 'test'; it has: train"),
    "close class": (["query", "features.zarr", "--class", "cats"], 1, "did you mean 'cat'?"),
    "row range": (["query", "features.zarr", "--rows", "a:b"], 1, "rows must look like 1000:2000"),
    "bad ending": (["export", "features.zarr", "out.doc"], 1, "cannot export to 'out.doc'"),
    "no file": (["import", "missing.npy"], 1, "no such file: missing.npy"),
    "finished": (["import", "other.npy", "features.zarr"], 1, "finished split 'train' of another origin"),
    "empty rows": (["export", "features.zarr", "out.npy", "--rows", ""], 1, "rows is empty"),
    "a file as a folder": (["query", "features.zarr", "-o", "other.npy/x.npy"], 1, "other.npy is no folder"),
    "rows folder": (["query", "features.zarr", "--rows", "."], 1, "not a list of row numbers"),
    "empty labels": (
        ["import", "other.npy", "o.zarr", "--labels", "empty.npy"],
        1,
        "empty.npy is not a numpy array file",
    ),
    "long number": (["import", "other.npy", "o.zarr", "--labels", "long.txt"], 1, "not a list of labels"),
    "huge label": (["import", "other.npy", "o.zarr", "--labels", "huge.txt"], 1, "far beyond the number of rows"),
    "huge chunk": (["import", "other.npy", "o.zarr", "--chunk-rows", "100000000000000"], 1, "less than 1 TB"),
    "no columns": (["import", "flat.npy", "o.zarr"], 1, "two-dimensional"),
    "a folder": (["import", "."], 1, "has ending ''"),
    "bad option": (["info", "--nonsense"], 2, "No such option"),
    "bad dtype": (["import", "other.npy", "--dtype", "f8"], 2, "'f8' is not one of"),
    "no such command": (["frobnicate"], 2, "No such command"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_clear_line(store: Path, case: str) -> None:
    np.save("other.npy", VALUES[:3])
    np.save("flat.npy", VALUES[:3, :0])
    Path("empty.npy").touch()
    Path("long.txt").write_text("9" * 30 + "\n1\n2\n")
    Path("huge.txt").write_text("5000000\n1\n2\n")
    arguments, code, message = ERRORS[case]
    result = run(*arguments, code=code)
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_means_of_a_store_that_cannot_be_written_to_are_not_called_kept(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from actstore import statistics

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(statistics, "create_raw_array", refuse)
        assert "not kept" in run("means", store).stdout
        assert run_json("means", store)["kept"] is False
    assert "not kept" not in run("means", store).stdout


def test_the_store_is_found_by_itself(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_json("info")["dim"] == 16
    run("synth", "second.zarr", "--rows", 50, "--dim", 8, "--classes", 2)
    said = run("info", "--json", code=2).stderr
    assert "second.zarr, " in said
    assert " info second.zarr --json`" in said
    monkeypatch.setenv("ACTSTORE", "second.zarr")
    assert run_json("info")["dim"] == 8


def test_a_refused_import_leaves_no_split(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actstore.tables.row_source.BLOCK_BYTES", 2048)  # 32 rows at a time
    bad = VALUES.copy()
    bad[300, 2] = np.nan
    np.save("bad.npy", bad)
    assert "row 300" in run("import", "bad.npy", "b.zarr", "--chunk-rows", 128, code=1).stderr
    assert run_json("info", "b.zarr")["splits"] == []
    np.save("bad.npy", VALUES)
    run("import", "bad.npy", "b.zarr")
    assert run_json("info", "b.zarr")["splits"][0]["rows"] == 400


def test_an_interrupted_build_is_shown_and_restarted(store: Path) -> None:
    begun = actstore.create("b.zarr", classes=["a"], dim=VALUES.shape[1], chunk_rows=128)
    writer = begun.writer("train", source={"kind": "test"})
    writer.append(VALUES[:300])
    writer.close()
    assert run_json("info", "b.zarr")["splits"][0]["complete"] is False
    assert "not complete" in run("means", "b.zarr", code=1).stderr
    assert "incomplete: train" in run("verify", "b.zarr").stdout
    np.save("good.npy", VALUES)
    assert "--restart" in run("import", "good.npy", "b.zarr", code=1).stderr
    run("import", "good.npy", "b.zarr", "--restart")
    assert run_json("info", "b.zarr")["splits"][0]["rows"] == 400


@pytest.mark.parametrize("tool", ["actstore", "ppa"])
def test_help_does_not_load_what_it_does_not_need(tool: str) -> None:
    code = f"import sys; from cli.{tool} import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "Usage:" in printed
    assert not {"torch", "zarr", "numpy", "dask", "faiss"} & set(printed.splitlines()[-1].split())

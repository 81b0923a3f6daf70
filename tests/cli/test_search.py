from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest
from PIL import Image

import actstore
from actstore.compute.tensors import one_thread
from cli.actstore import main

ROWS = 1200


def run(*arguments: Any, code: int = 0) -> click.testing.Result:
    with one_thread():  # too little work for two
        result = click.testing.CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments: Any) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows 0 to ROWS - 1; row 17 again as row 800; a split val."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACTSTORE", raising=False)
    random = np.random.default_rng(3)
    centres = random.standard_normal((12, 32))
    values = (centres[random.integers(0, 12, ROWS + 100)] + 0.4 * random.standard_normal((ROWS + 100, 32))).astype("f2")
    values[800] = values[17]
    parts = {"train": values[:ROWS], "val": values[ROWS:]}
    np.save("v.npy", values[17])
    np.save("many.npy", values[[17, 30]])
    labelled = {name: (rows, np.zeros(len(rows), np.int64)) for name, rows in parts.items()}
    actstore.from_arrays(tmp_path / "x.zarr", labelled, classes=["one"])
    return tmp_path / "x.zarr"


def test_a_row_its_vector_and_their_table(store: Path) -> None:
    result = run_json("search", store, "--row", 17, "-k", 3)
    first = result["neighbours"][0]
    assert (first["row"], first["score"], first["rank"]) == (800, 1.0, 1)  # not row 17 itself
    assert len(result["neighbours"]) == 3
    by_vector = run_json("search", store, "--vector", "v.npy", "-k", 2)["neighbours"]
    assert [one["row"] for one in by_vector] == [17, 800]  # equal scores: by row
    shown = run("search", store, "--row", 17).stdout.splitlines()
    assert shown[0].split() == ["rank", "score", "row", "class", "id"]
    assert len(shown) == 11
    several = run("search", store, "--vector", "many.npy", "-k", 1, "--metric", "inner").stdout
    assert "many.npy[0]" in several
    assert "many.npy[1]" in several


@pytest.mark.parametrize("kind", ["bounded", "ivf", "hnsw"])
def test_an_index_is_built_and_used(store: Path, kind: str) -> None:
    options = () if kind == "bounded" else ("--dims", 32, "--recall-queries", "val")
    made = run_json("index", store, "--split", "train", "--kind", kind, *options)
    assert made["kind"] == kind
    if kind != "bounded":
        assert made["recall"] >= 0.95
        assert made["queries"] == 100
        assert made["held_out"] == 0
    assert "index" in run("index", store, "--kind", kind, *options).stdout
    found = run_json("search", store, "--row", 17, "-k", 1, "--method", kind)["neighbours"]
    assert found[0]["row"] == 800


ERRORS: dict[str, tuple[list[str], int, str]] = {
    "no query": (["search", "x.zarr"], 2, "one of --image, --row and --vector"),
    "two queries": (["search", "x.zarr", "--row", "1", "--vector", "v.npy"], 2, "one of --image"),
    "row": (["search", "x.zarr", "--row", "5000"], 1, "row 5000 is out of range"),
    "k": (["search", "x.zarr", "--row", "1", "-k", "1200"], 2, "-k is 1,200, but only 1,199 rows"),
    "k of some": (["search", "x.zarr", "--row", "1", "-k", "4", "--rows", "0:4"], 2, "-k is 4, but only 3 rows"),
    "nothing left": (["search", "x.zarr", "--row", "1", "--glob", "nowhere/*"], 1, "satisfies every filter"),
    "no such class": (["search", "x.zarr", "--row", "1", "--class", "two"], 1, "two"),
    "no range": (["search", "x.zarr", "--row", "1", "--rows", "a:b"], 1, "rows must look like"),
    "no such file": (["search", "x.zarr", "--vector", "none.npy"], 1, "none.npy"),
    "no numbers": (["search", "x.zarr", "--vector", "x.txt"], 1, "x.txt is not a numpy array file"),
    "zero": (["search", "x.zarr", "--vector", "zero.npy"], 1, "query 0 is a zero vector"),
    "NaN": (["search", "x.zarr", "--vector", "nan.npy"], 1, "query 0 holds a NaN"),
    "dim": (["search", "x.zarr", "--vector", "short.npy"], 1, "shape (n, 32)"),
    "no index": (["search", "x.zarr", "--row", "1", "--method", "pq"], 1, "--kind pq"),
    "GPU": (["search", "x.zarr", "--row", "1", "--device", "cuda"], 1, "a GPU was asked for, but"),
    "no backbone": (["search", "x.zarr", "--image", "cat.jpg"], 1, "was not built from images"),
    "same split": (["index", "x.zarr", "--kind", "ivf", "--recall-queries", "train"], 2, "another split than train"),
    "no such split": (["index", "x.zarr", "--kind", "ivf", "--recall-queries", "test"], 1, "no split 'test'"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_clear_line(store: Path, case: str) -> None:
    import faiss

    if case == "GPU" and hasattr(faiss, "get_num_gpus") and faiss.get_num_gpus():
        pytest.skip("there is a GPU")
    Path("x.txt").write_text("no numbers")
    for name, values in (("zero", np.zeros(32)), ("nan", np.full(32, np.nan)), ("short", np.ones(31))):
        np.save(f"{name}.npy", values)
    arguments, code, message = ERRORS[case]
    result = run(*arguments, code=code)
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("kind", ["bounded", "ivf"])
def test_an_index_of_older_rows_is_used_named_and_extended(store: Path, kind: str) -> None:
    options = () if kind == "bounded" else ("--dims", 32, "--recall", 0.5)
    run("index", store, "--split", "train", "--kind", kind, *options)
    run("append", "v.npy", store, code=1)  # one axis only
    np.save("more.npy", np.load("many.npy")[:1])  # row 17 once more
    run("append", "more.npy", store, "--split", "train")
    result = run("search", store, "--split", "train", "--row", 17, "-k", 2, "--method", kind, "--json")
    assert [one["row"] for one in json.loads(result.stdout)["neighbours"]] == [800, ROWS]
    if kind == "bounded" and "covers" not in result.stderr:
        return  # rows that leading coordinates do not tell apart have nothing to extend
    assert f"index {kind} covers 1,200 of 1,201 rows" in result.stderr
    run("index", store, "--split", "train", "--kind", kind, *options[2:])
    extended = run("search", store, "--split", "train", "--row", 17, "-k", 2, "--method", kind, "--json")
    assert "covers" not in extended.stderr
    assert [one["row"] for one in json.loads(extended.stdout)["neighbours"]] == [800, ROWS]


def test_rows_are_limited_by_class_id_and_number(store: Path) -> None:
    found = run_json("search", store, "--split", "train", "--row", 17, "-k", 3, "--rows", "18:900:2")["neighbours"]
    assert found[0]["row"] == 800
    assert all(one["row"] % 2 == 0 for one in found)
    itself = run_json("search", store, "--split", "train", "--row", 17, "-k", 1, "--rows", "0:100")["neighbours"]
    assert itself[0]["row"] not in (17, 800)
    by_id = run_json("search", store, "--split", "train", "--row", 17, "-k", 1, "--glob", "80?", "--class", "one")
    assert by_id["neighbours"][0]["row"] == 800


def test_an_image_goes_through_the_backbone_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        Path("photos", name).mkdir(parents=True)
        for number in range(3):
            colour = (40 * number, 9, 90) if name == "cat" else (9, 60 * number + 50, 20)
            Image.new("RGB", (50, 60), colour).save(f"photos/{name}/{number}.png")
    run("build", "photos", "--backbone", "small", "--random-weights", "--workers", 0)
    found = run_json("search", "photos.zarr", "--image", "photos/dog/1.png", "-k", 2)["neighbours"]
    assert found[0]["id"] == "dog/1.png"
    assert found[0]["class"] == "dog"
    assert found[0]["score"] == pytest.approx(1, abs=1e-3)  # stored in float16
    both = run("search", "photos.zarr", "--image", "photos/dog/1.png", "--image", "photos/cat/0.png", "-k", 1).stdout
    assert "cat/0.png" in both
    missing = run("search", "photos.zarr", "--image", "none.png", code=1)
    assert "none.png" in missing.stderr
    weights = run("search", "photos.zarr", "--image", "photos/dog/1.png", "--weights", "none.pth", code=1)
    assert "are not at none.pth" in weights.stderr
    _save_other_weights("other.safetensors")
    refused = run("search", "photos.zarr", "--image", "photos/dog/1.png", "--weights", "other.safetensors", code=1)
    assert "are not those the activations were made with" in refused.stderr


def _save_other_weights(path: str) -> None:
    from safetensors.torch import save_file

    from actstore.backbones.construction import construct

    save_file(construct("small", seed=5).module.state_dict(), path)


@pytest.mark.parametrize("spelled", [".", "./", "..", "../", "train/..", "../x.zarr/"])
def test_a_store_named_from_inside(store: Path, spelled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store / "train" if spelled.startswith("..") and "x" not in spelled else store)
    before = run_json("search", store, "--split", "train", "--row", 17, "--method", "exact")["neighbours"]
    run("index", spelled, "--split", "train", "--kind", "bounded")
    assert run_json("search", spelled, "--split", "train", "--row", 17, "--method", "bounded")["neighbours"] == before
    run("info", spelled)
    run("means", spelled)
    run("audit", spelled, "--split", "train")
    run("append", store.parent / "many.npy", spelled, "--split", "train")
    run("verify", spelled)
    run("verify", spelled, "--repair")
    beside = {path.name for path in store.parent.iterdir() if path.name.startswith("x.zarr.")}
    assert "x.zarr.search" in beside
    assert not any("search" in path.name or "audit" in path.name for path in store.rglob("*"))

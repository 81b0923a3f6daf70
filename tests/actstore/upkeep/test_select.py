"""`actstore select`: the chosen rows with all that belongs to them, whole or not at all, again after any kill."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import actstore
from actstore.errors import DamagedError, IncompleteError, InvalidInputError, MissingColumnError
from actstore.extraction.forward import network_of
from actstore.upkeep.copies import select
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import verify_store
from tests.actstore.writing.test_keeping import Killed, files, killed_at

random = np.random.default_rng(2)
VALUES = random.random((300, 16)).astype(np.float16)
LABELS = random.integers(-1, 3, 300)
IDS = [f"{label}/{row}.jpg" for row, label in enumerate(LABELS)]
COLUMNS: dict[str, Any] = {
    "area": np.where(np.arange(300) % 4, random.random(300), np.nan),
    "source": np.array([("web", "", "print")[row % 3] for row in range(300)], dtype=object),
}


def make(path: Path, chunk_rows: int = 64) -> actstore.ActivationStore:
    splits = {
        "train": (VALUES, LABELS, IDS, COLUMNS),
        "val": (VALUES[:50], LABELS[:50], IDS[:50], {name: values[:50] for name, values in COLUMNS.items()}),
    }
    facts = {"backbone": "none", "note": [1]}
    return actstore.from_arrays(path, splits, classes=["a", "b", "c"], chunk_rows=chunk_rows, provenance=facts)  # type: ignore[arg-type]


def require_rows(split: actstore.Split, rows: Any) -> None:
    np.testing.assert_array_equal(split[:], VALUES[rows])
    np.testing.assert_array_equal(split.labels, LABELS[rows])
    assert list(split.ids) == [IDS[row] for row in rows]
    for name, values in COLUMNS.items():
        np.testing.assert_array_equal(split.columns[name], values[rows])


@pytest.mark.parametrize("drop", [False, True])
def test_every_split_by_class_and_columns(tmp_path: Path, drop: bool) -> None:
    make(tmp_path / "x.zarr")
    where = ("area > 0.3", "source in (web, none)")
    out = select(tmp_path / "x.zarr", tmp_path / "y.zarr", classes=["a", "c"], where=where, drop=drop)
    with np.errstate(invalid="ignore"):
        keep = np.isin(LABELS, [0, 2]) & (COLUMNS["area"] > 0.3) & np.isin(COLUMNS["source"], ["web", ""])
    keep = ~keep if drop else keep
    require_rows(out["train"], np.flatnonzero(keep))
    require_rows(out["val"], np.flatnonzero(keep[:50]))
    assert out.classes == ("a", "b", "c")
    assert out.spec.provenance == {"backbone": "none", "note": [1]}
    assert verify_store(out) == []


@given(step=st.integers(1, 120), again=st.integers(1, 60), chunk=st.sampled_from([16, 64, 300]), drop=st.booleans())
@settings(max_examples=15, deadline=None)
def test_killed_at_any_step_it_goes_on_to_the_same_bytes(
    step: int, again: int, chunk: int, drop: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, patch = tmp_path_factory.mktemp("any"), pytest.MonkeyPatch()
    make(folder / "x.zarr")
    choice = {"where": ("source == web",), "drop": drop}
    whole = select(folder / "x.zarr", folder / "whole.zarr", **choice, chunk_rows=chunk)
    for kill in (step, again):
        with killed_at(kill, patch), suppress(Killed):
            select(folder / "x.zarr", folder / "killed.zarr", **choice, chunk_rows=chunk)
    killed = select(folder / "x.zarr", folder / "killed.zarr", **choice, chunk_rows=chunk)
    assert files(Path(str(killed.path))) == files(Path(str(whole.path)))


def test_where_the_rows_came_from_is_kept(tmp_path: Path) -> None:
    store = make(tmp_path / "x.zarr")
    with store.writer("train", source={"kind": "images", "path": "p", "backbone": "small", "layer": "l"}) as writer:
        writer.append(VALUES[:10], LABELS[:10], IDS[:10])
        writer.commit(skipped=[["a", "broken"]])
    out = select(tmp_path / "x.zarr", tmp_path / "y.zarr", rows="1::2", splits=["train"])
    first, second = out["train"].committed.sources
    assert (first["rows"], first["from"]) == ([0, 150], {"kind": "arrays"})
    assert second["rows"] == [150, 155]
    assert second["from"]["path"] == "p"
    assert network_of(out["train"])["backbone"] == "small"
    twice = select(tmp_path / "y.zarr", tmp_path / "z.zarr", rows="100:")
    assert [source["rows"] for source in twice["train"].committed.sources] == [[0, 50], [50, 55]]
    assert network_of(twice["train"])["backbone"] == "small"


def test_a_damaged_selection_is_mended_from_the_first_store(tmp_path: Path) -> None:
    make(tmp_path / "x.zarr")
    out = select(tmp_path / "x.zarr", tmp_path / "y.zarr", where=("area != none",), chunk_rows=32)
    before = files(tmp_path / "y.zarr")
    for name in ("activations/c/3/0", "source.bytes/c/0", "labels/c/0"):
        (tmp_path / "y.zarr/train" / name).unlink()
    outcomes = repair_faults(out, verify_store(out))
    assert {said for _, said in outcomes} == {"repaired from its source"}
    assert files(tmp_path / "y.zarr") == before


def test_damage_is_not_copied(tmp_path: Path) -> None:
    make(tmp_path / "x.zarr")
    file = tmp_path / "x.zarr/train/activations/c/2/0"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedError, match="chunk"):
        select(tmp_path / "x.zarr", tmp_path / "y.zarr", classes=["a"])


def test_what_is_refused(tmp_path: Path) -> None:
    store = make(tmp_path / "x.zarr")
    path = tmp_path / "x.zarr"
    with pytest.raises(InvalidInputError, match=r"no row of train, val in .* is chosen"):
        select(path, tmp_path / "y.zarr", where=("area > 9",))
    assert not (tmp_path / "y.zarr").exists()
    with pytest.raises(MissingColumnError, match="no column 'aera'; it has: area, source"):
        select(path, tmp_path / "y.zarr", where=("aera > 9",))
    with pytest.raises(InvalidInputError, match="is the store that is read"):
        select(path, path, classes=["a"])
    select(path, tmp_path / "y.zarr", classes=["a"])
    select(path, tmp_path / "y.zarr", classes=["a"])  # done already
    with pytest.raises(IncompleteError, match="holds other rows than those chosen now"):
        select(path, tmp_path / "y.zarr", classes=["b"])
    with store.writer("train") as writer:
        writer.append(VALUES[:1], [0], ["new"])
    with pytest.raises(IncompleteError, match="holds other rows than those chosen now"):
        select(path, tmp_path / "y.zarr", classes=["a"])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cli.actstore import main

    monkeypatch.chdir(tmp_path)
    make(tmp_path / "x.zarr")
    np.save("bad.npy", np.arange(0, 300, 3))
    done = CliRunner().invoke(
        main, ["select", "x.zarr", "y.zarr", "--split", "train", "--rows", "bad.npy", "--drop", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["rows"] == {"train": 200}
    require_rows(actstore.open("y.zarr")["train"], np.flatnonzero(np.arange(300) % 3))
    done = CliRunner().invoke(main, ["select", "x.zarr", "z.zarr", "--where", "row >= 100 and class == a"])
    assert "WARNING: no row of val is chosen; it is left out" in done.stderr
    assert "z.zarr: train" in done.stdout
    for words, said in (("", "say which rows"), ("--rows 0:5", "choose it with --split: train, val")):
        done = CliRunner().invoke(main, f"select x.zarr new.zarr {words}".split())
        assert done.exit_code == 2
        assert said in done.stderr


def test_into_a_bucket(tmp_path: Path, place: str) -> None:
    make(tmp_path / "x.zarr")
    out = select(tmp_path / "x.zarr", place, where=("source == print",))
    require_rows(out["train"], np.arange(2, 300, 3))
    assert verify_store(out) == []

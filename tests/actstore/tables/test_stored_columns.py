"""Columns that a store has: rechunked, damaged and mended, and as other readers see them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import actstore
from actstore.tables.exporting import export
from actstore.tables.importing import ImportRequest, import_file
from actstore.upkeep.copies import rechunk
from actstore.upkeep.repair import repair_faults
from actstore.upkeep.verify import verify_store
from tests.actstore.tables.column_examples import COLUMNS, IDS, VALUES, make, same_columns


def test_rechunked_stores_keep_their_columns(tmp_path: Path) -> None:
    store = make(tmp_path / "x.zarr")
    with store.writer("train", source={"kind": "more"}) as writer:
        writer.append(VALUES[:5], [0] * 5, IDS[:5])
    out = rechunk(tmp_path / "x.zarr", tmp_path / "y.zarr", chunk_rows=7)
    for name in COLUMNS:
        np.testing.assert_array_equal(out["train"].columns[name], store["train"].columns[name])
    assert out["train"].committed.columns == store["train"].committed.columns
    assert verify_store(out) == []
    rechunk(tmp_path / "x.zarr", tmp_path / "y.zarr", chunk_rows=7)  # done already: compared


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 16
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["area", "source.bytes", "source.offsets", "date", "keep"])
@pytest.mark.parametrize("part", ["c/0", "zarr.json", "gone"])
def test_damage_is_found_and_mended_from_the_source(tmp_path: Path, name: str, part: str) -> None:
    export(make(tmp_path / "first.zarr")["train"], tmp_path / "out.parquet")
    store = import_file(ImportRequest(tmp_path / "out.parquet"), tmp_path / "x.zarr")
    file = store.path / "train" / name / (part if part != "gone" else "c/0")
    before = file.read_bytes()
    file.unlink() if part == "gone" else damage(file)
    faults = verify_store(store)
    assert {fault.array for fault in faults} == {name}
    outcomes = repair_faults(store, faults)
    assert all("repaired" in said for _, said in outcomes), outcomes
    assert file.read_bytes() == before
    same_columns(actstore.open(store.path))


def test_a_lost_split_is_described_anew_with_its_columns(tmp_path: Path) -> None:
    from actstore.upkeep.repair import restore_groups

    store = make(tmp_path / "x.zarr")
    content = store["train"].content
    (store.path / "train/zarr.json").unlink()
    restore_groups(store.path)
    same_columns(actstore.open(store.path), sorted(COLUMNS))
    assert store["train"].content == content


def test_other_values_with_a_sound_checksum_are_noticed(tmp_path: Path) -> None:
    import shutil

    store, other = make(tmp_path / "x.zarr"), make(tmp_path / "y.zarr", COLUMNS | {"area": np.arange(60.0)})
    shutil.copy(other.path / "train/area/c/0", store.path / "train/area/c/0")
    (fault,) = verify_store(store)
    assert "the values of column 'area' are not those committed" in str(fault)


def test_xarray_and_info(tmp_path: Path) -> None:
    from cli.actstore import main

    make(tmp_path / "x.zarr")
    data = actstore.open(tmp_path / "x.zarr")["train"].to_xarray()
    for name, values in COLUMNS.items():
        np.testing.assert_array_equal(data[name].values, values)
        assert data[name].dims == ("row",)
    said = CliRunner().invoke(main, ["info", str(tmp_path / "x.zarr")], catch_exceptions=False).output
    for line in ("area float 0.142857 to 8.42857 12", "source text 2 distinct 20", "keep bool False to True 0",
                 "date date 2024-01-01 to 2025-02-03T04:05:06.700000 1"):  # fmt: skip
        assert line in " ".join(said.split()), said
    done = CliRunner().invoke(main, ["info", str(tmp_path / "x.zarr"), "--json"], catch_exceptions=False)
    found = json.loads(done.output)["splits"][0]["columns"]
    assert found[1] == {"name": "width", "type": "int", "missing": 0, "smallest": 0, "largest": 59 * 10**15}


def test_info_names_a_damaged_column_and_shows_the_others(tmp_path: Path) -> None:
    from cli.actstore import main

    make(tmp_path / "x.zarr")
    damage(tmp_path / "x.zarr/train/area/c/0")
    done = CliRunner().invoke(main, ["info", str(tmp_path / "x.zarr")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "is corrupt" in next(line for line in done.output.splitlines() if line.startswith("area"))
    assert "2 distinct" in done.output


def test_other_readers_see_columns(tmp_path: Path) -> None:
    import xarray
    import zarr

    store = make(tmp_path / "x.zarr", COLUMNS | {"count": [None, *range(59)]})
    group = zarr.open_group(store.path / "train", mode="r")
    np.testing.assert_array_equal(group["area"][:], COLUMNS["area"])  # type: ignore[index]
    np.testing.assert_array_equal(group["date"][:].view("M8[us]"), COLUMNS["date"])  # type: ignore[index,union-attr]
    assert group["keep"].metadata.dimension_names == ("row",)  # type: ignore[union-attr]
    offsets, data = group["source.offsets"][:], group["source.bytes"][:].tobytes()  # type: ignore[index,union-attr]
    assert [data[a:b].decode() for a, b in pairwise(offsets)] == list(COLUMNS["source"])  # type: ignore[arg-type,index,misc]
    found = xarray.open_zarr(store.path, group="train", consolidated=False)
    assert found["date"].dtype.kind == "M"
    np.testing.assert_array_equal(found["date"].values, COLUMNS["date"])
    np.testing.assert_array_equal(found["count"].values, [np.nan, *range(59)])
    assert found["area"].dims == found["keep"].dims == ("row",)

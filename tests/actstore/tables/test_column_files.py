"""Columns in and out of files: csv, parquet, npz, safetensors, beside a .npy; and mended from them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import actstore
from actstore.errors import InvalidInputError
from actstore.tables.column_files import column_of_cells
from actstore.tables.exporting import export
from actstore.tables.importing import ImportRequest, append_file, import_file
from actstore.upkeep.rechunk import rechunk
from actstore.upkeep.repair import repair
from actstore.upkeep.verify import verify_store

VALUES = np.random.default_rng(1).random((60, 6)).astype(np.float32)
COLUMNS: dict[str, Any] = {
    "area": np.where(np.arange(60) % 5, np.arange(60) / 7, np.nan),
    "width": np.arange(60) * 10**15,
    "source": np.array([("web", "", "größe, 'x'")[row % 3] for row in range(60)], dtype=object),
    "date": np.array(["NaT", *(f"2024-01-{day % 28 + 1:02d}" for day in range(58)), "2025-02-03T04:05:06.7"], "M8[us]"),
    "keep": np.arange(60) % 2 == 0,
}
IDS = [f"image{row}.jpg" for row in range(60)]


def make(path: Path, columns: dict[str, Any] = COLUMNS) -> actstore.ActivationStore:
    labels = np.arange(60) % 3
    return actstore.from_arrays(path, {"train": (VALUES, labels, IDS, columns)}, classes=["a", "b", "c"])


def same_columns(store: actstore.ActivationStore, names: Any = tuple(COLUMNS), expected: Any = COLUMNS) -> None:
    found = store["train"].columns
    assert list(found) == list(names)
    for name in names:
        np.testing.assert_array_equal(found[name], expected[name])
        assert found[name].dtype == np.asarray(expected[name]).dtype, name
    assert verify_store(store) == []


@pytest.mark.parametrize("ending", [".npz", ".parquet", ".safetensors", ".csv", ".npy"])
def test_an_export_comes_back(tmp_path: Path, ending: str) -> None:
    store = make(tmp_path / "x.zarr")
    files = export(store["train"], tmp_path / f"out{ending}")
    request = ImportRequest(files[0])
    if ending == ".csv":
        request = ImportRequest(files[0], column=tuple(COLUMNS))
    elif ending == ".npy":
        assert files[3] == tmp_path / "out.columns.parquet"
        request = ImportRequest(files[0], labels=files[1], ids=files[2], columns=files[3])
    again = import_file(request, tmp_path / "again.zarr")
    np.testing.assert_allclose(again["train"][:], VALUES, rtol=1e-8)
    assert list(again["train"].ids) == IDS
    same_columns(again)


def test_chosen_rows_bring_their_columns(tmp_path: Path) -> None:
    import pyarrow.parquet

    store = make(tmp_path / "x.zarr")
    rows = store["train"].query(where="source == web and area != none")
    export(store["train"], tmp_path / "some.parquet", rows)
    table = pyarrow.parquet.read_table(tmp_path / "some.parquet")
    assert table.column_names == ["id", "label", "activations", *COLUMNS]
    np.testing.assert_array_equal(table.column("area"), COLUMNS["area"][rows])
    assert table.column("source").to_pylist() == ["web"] * len(rows)
    assert table.column("id").to_pylist() == [IDS[row] for row in rows]
    export(store["train"], tmp_path / "plain.parquet", [1])
    assert pyarrow.parquet.read_table(tmp_path / "plain.parquet").column("source").to_pylist() == [None]


def test_a_store_without_columns_exports_as_before(tmp_path: Path) -> None:
    import pyarrow.parquet

    store = make(tmp_path / "x.zarr", {})
    assert len(export(store["train"], tmp_path / "out.npy")) == 3
    export(store["train"], tmp_path / "out.parquet")
    assert pyarrow.parquet.read_schema(tmp_path / "out.parquet").names == ["id", "label", "activations"]
    assert "columns" not in json.loads((tmp_path / "x.zarr/train/zarr.json").read_text())["attributes"]["actstore"]


def csv_of(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_csv_columns_by_name_and_appends(tmp_path: Path) -> None:
    header = "f0,f1,label,source,area,day,code"
    first = csv_of(tmp_path / "a.csv", [header, "1,2,0,web,0.5,2024-01-31,007", "3,4,1,,1,,B1"])
    with pytest.raises(
        InvalidInputError, match=r"column 'source' of .* is not numbers; .* keep it with --column source"
    ):
        import_file(ImportRequest(first), tmp_path / "x.zarr")
    names = ("source", "area", "day", "code")
    store = import_file(ImportRequest(first, column=names), tmp_path / "x.zarr")
    np.testing.assert_array_equal(store["train"][:], [[1, 2], [3, 4]])
    second = csv_of(tmp_path / "b.csv", [header, "5,6,0,12,2,2025-01-31T10:00:00Z,12", "7,8,1,13,3,,13"])
    assert append_file(ImportRequest(second, column=names), tmp_path / "x.zarr") == 2
    assert append_file(ImportRequest(second, column=names), tmp_path / "x.zarr") == 0
    assert append_file(ImportRequest(second, column=("source", "area", "day", "code")[::-1]), tmp_path / "x.zarr") == 2
    same_columns(
        actstore.open(tmp_path / "x.zarr"), names,
        {
            "source": np.array(["web", "", "12", "13", "12", "13"], dtype=object),
            "area": np.array([0.5, 1, 2, 3, 2, 3]),
            "day": np.array(["2024-01-31", "NaT", *["2025-01-31T10", "NaT"] * 2], "M8[us]"),
            "code": np.array(["007", "B1", "12", "13", "12", "13"], dtype=object),
        },
    )  # fmt: skip
    without = csv_of(tmp_path / "c.csv", ["f0,f1,label", "9,9,0"])
    assert append_file(ImportRequest(without), tmp_path / "x.zarr") == 1
    found = actstore.open(tmp_path / "x.zarr")["train"].columns
    assert np.isnan(found["area"][-1])
    assert found["source"][-1] == ""


def test_a_file_of_columns_beside_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES[:3])
    (tmp_path / "ids.txt").write_text("a\nb\nc\n")
    facts = csv_of(tmp_path / "facts.csv", ["row,id,source,area", "0,a,web,1", "1,b,,2", "2,c,web,"])
    request = ImportRequest(tmp_path / "x.npy", ids=tmp_path / "ids.txt", columns=facts)
    store = import_file(request, tmp_path / "x.zarr")
    source = np.array(["web", "", "web"], dtype=object)
    same_columns(store, ("source", "area"), {"source": source, "area": np.array([1, 2, np.nan])})
    chosen = import_file(ImportRequest(tmp_path / "x.npy", columns=facts, column=("area",)), tmp_path / "y.zarr")
    assert list(chosen["train"].columns) == ["area"]
    csv_of(facts, ["id,source", "a,web", "c,", "b,web"])
    with pytest.raises(InvalidInputError, match=r"row 1 has id 'b', but 'c' in .*; sort it as the rows are"):
        import_file(request, tmp_path / "z.zarr")
    csv_of(facts, ["source", "web"])
    with pytest.raises(InvalidInputError, match="has 3 rows but 1 values of column 'source'"):
        import_file(request, tmp_path / "z.zarr")
    with pytest.raises(InvalidInputError, match=r"facts.csv has no column 'are'; it has: source"):
        import_file(ImportRequest(tmp_path / "x.npy", columns=facts, column=("are",)), tmp_path / "z.zarr")


def test_wide_parquet_with_dates_of_a_time_zone(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    moments = pyarrow.array([0, None, 1_000_000_001], pyarrow.timestamp("ns", "Europe/Paris"))
    table = pyarrow.table(
        {
            "f0": [1.0, 2, 3],
            "f1": [1.0, 2, 3],
            "when": moments,
            "kind": pyarrow.array(["a", "b", None]).dictionary_encode(),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    store = import_file(ImportRequest(tmp_path / "x.parquet", column=("when", "kind")), tmp_path / "x.zarr")
    expected = {
        "when": np.array([0, "NaT", 1_000_000], "M8[us]"), "kind": np.array(["a", "b", ""], dtype=object),
    }  # fmt: skip
    same_columns(store, ("when", "kind"), expected)
    pyarrow.parquet.write_table(table.append_column("bad", [[[1], [2], [3]]]), tmp_path / "y.parquet")
    with pytest.raises(InvalidInputError, match=r"column 'bad' of .* is of type list"):
        import_file(ImportRequest(tmp_path / "y.parquet", array="bad", column=("bad",)), tmp_path / "y.zarr")


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "", "-2"], "int"), (["1", "2.5", None], "float"), (["007", "1"], "text"), (["1e3", "nan"], "float"),
        (["true", "False"], "bool"), (["2024-01-01", " 2024-01-01 10:00"], "date"), (["2024", "x"], "text"),
        (["", ""], "text"), (["12:30", "x"], "text"), ([str(2**70), "1"], "text"),
    ],
)  # fmt: skip
def test_cells_are_what_they_look_like(cells: list[str], kind: str) -> None:
    if cells[0] == str(2**70):
        with pytest.raises(InvalidInputError, match="beyond 64 bits"):
            column_of_cells("x", cells)
    else:
        assert column_of_cells("x", cells).kind == kind


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
    outcomes = repair(store, faults)
    assert all("repaired" in said for _, said in outcomes), outcomes
    assert file.read_bytes() == before
    same_columns(actstore.open(store.path))


def test_a_lost_split_is_described_anew_with_its_columns(tmp_path: Path) -> None:
    from actstore.upkeep.metadata_repair import restore_groups

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


@pytest.mark.parametrize("cell", ["12_34", "007", "007.5", "-01e3", "١٢", "1 2"])
def test_what_only_python_takes_for_a_number_is_text(cell: str) -> None:
    column = column_of_cells("code", ["1.5", cell, ""])
    assert (column.kind, column.values().tolist()) == ("text", ["1.5", cell, ""])


@pytest.mark.parametrize("cell", ["0.5", ".5", "5.", "-1e-07", "+2E+300", "inf", "-Infinity"])
def test_what_others_write_as_a_number_is_one(cell: str) -> None:
    column = column_of_cells("area", [cell, "nan"])
    assert column.kind == "float"
    np.testing.assert_array_equal(column.values(), [float(cell), np.nan])


def test_bytes_in_another_encoding_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", activations=VALUES[:2], place=np.array(["café".encode("latin-1"), b"bar"]))
    with pytest.raises(InvalidInputError, match=r"column 'place' holds b'caf.xe9', expected text in UTF-8"):
        import_file(ImportRequest(tmp_path / "a.npz", column=("place",)), tmp_path / "a.zarr")
    np.savez(tmp_path / "b.npz", activations=VALUES[:2], ids=np.array(["café".encode("latin-1"), b"bar"]))
    with pytest.raises(InvalidInputError, match=r"ids or names hold b'caf.xe9', expected text in UTF-8"):
        import_file(ImportRequest(tmp_path / "b.npz"), tmp_path / "b.zarr")

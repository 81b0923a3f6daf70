"""Columns in and out of files: csv, parquet, npz, safetensors, beside a .npy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import actstore
from actstore.errors import InvalidInputError
from actstore.tables.exporting import export
from actstore.tables.importing import ImportRequest, append_file, import_file
from actstore.tables.tabular import column_of_cells
from tests.actstore.tables.column_examples import COLUMNS, IDS, VALUES, make, same_columns


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

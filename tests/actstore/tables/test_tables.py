"""Rows come in as they are: types, column layouts, tensors, memory orders, text with a BOM."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import actstore
from actstore.errors import InvalidInputError
from actstore.tables.exporting import export
from actstore.tables.importing import ImportRequest, import_file, read_column, read_request
from actstore.tables.row_source import Rounding
from cli.actstore import main

VALUES = np.random.default_rng(0).random((300, 16), dtype=np.float32)
NAMES = [f"c{row % 5}" for row in range(300)]
IDS = [f"a/é{row}.jpg" for row in range(300)]


def imported(path: Path, **more: Any) -> actstore.Split:
    return import_file(ImportRequest(path, **more), path.with_name("x.zarr"))["train"]


def write_csv(path: Path, header: list[str] | None, columns: list[Any], **options: Any) -> Path:
    with path.open("w", encoding=options.pop("encoding", "utf-8"), newline="") as file:
        writer = csv.writer(file, **options)
        if header is not None:
            writer.writerow(header)
        writer.writerows(zip(*columns, strict=True))
    return path


FEATURES = [f"f{number}" for number in range(16)]
NUMBERS = [list(map(repr, map(float, VALUES[:, column]))) for column in range(16)]


# ---- types


@pytest.mark.parametrize(("dtype", "stored"), [("f2", "f2"), ("f4", "f4"), ("f8", "f4"), ("i8", "f4"), ("u1", "f2")])
def test_rows_keep_their_type(tmp_path: Path, dtype: str, stored: str) -> None:
    values = (VALUES * 200).astype(dtype)
    np.save(tmp_path / "x.npy", values)
    split = imported(tmp_path / "x.npy")
    assert split.spec.dtype == stored
    np.testing.assert_array_equal(split[:], values.astype(stored))
    arrays = actstore.from_arrays(tmp_path / "y.zarr", {"train": (values, None)})
    assert arrays.spec.dtype == stored
    assert actstore.from_arrays(tmp_path / "z.zarr", {"train": (values, None)}, dtype="f2").spec.dtype == "f2"


def test_the_closing_line_says_what_the_type_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", VALUES)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["import", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "f4" in run("x.npy", "whole.zarr")
    assert "rounding" not in run("x.npy", "again.zarr")
    line = run("x.npy", "half.zarr", "--dtype", "f2")
    assert "f2" in line
    assert "rounding to f2 moved no value by more than 0.000" in line
    result = json.loads(run("x.npy", "json.zarr", "--dtype", "f2", "--json"))
    assert result["dtype"] == "f2"
    error = np.abs(VALUES.astype("f2").astype(float) - VALUES) / VALUES.max(1, keepdims=True)
    assert result["rounding"] == pytest.approx(error.max(), rel=1e-6)
    np.save("wide.npy", np.asfortranarray(VALUES.astype("f8") / 3))
    assert 0 < json.loads(run("wide.npy", "wide.zarr", "--json"))["rounding"] < 6e-8
    np.save("numbers.npy", np.arange(48).reshape(3, 16))
    assert "f4 holds every value exactly" in run("numbers.npy", "numbers.zarr")


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.floats(-6e4, 6e4), min_size=3, max_size=3), min_size=1, max_size=5))
def test_rounding_is_the_largest_error_in_units_of_the_row(rows: list[list[float]]) -> None:
    values, rounding = np.array(rows), Rounding()
    rounding.measure(values, "f2")
    sizes = np.abs(values).max(1, keepdims=True)
    expected = np.divide(np.abs(values.astype("f2") - values), sizes, where=sizes > 0, out=np.zeros_like(values))
    assert rounding.largest == pytest.approx(expected.max(), rel=1e-9, abs=1e-12)


def test_a_failed_from_arrays_leaves_nothing_behind(tmp_path: Path) -> None:
    bad = np.where(np.arange(300)[:, None] == 250, np.nan, VALUES)
    (tmp_path / "there.zarr").mkdir()
    for name in ("new.zarr", "there.zarr"):
        with pytest.raises(InvalidInputError, match="row 250"):
            actstore.from_arrays(tmp_path / name, {"train": (VALUES, None), "val": (bad, None)}, chunk_rows=64)
    assert [path.name for path in tmp_path.rglob("*")] == ["there.zarr"]
    actstore.from_arrays(tmp_path / "new.zarr", {"train": (VALUES, None)})


# ---- layouts


def test_a_csv_with_a_column_per_feature(tmp_path: Path) -> None:
    header = ["filename", *FEATURES, "label"]
    path = write_csv(tmp_path / "x.csv", header, [IDS, *NUMBERS, NAMES], encoding="utf-8-sig")
    split = imported(path)
    np.testing.assert_array_equal(split[:], VALUES)
    assert list(split.ids) == IDS
    assert [split.classes[label] for label in split.labels] == NAMES


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_of_numbers_alone(tmp_path: Path, delimiter: str) -> None:
    split = imported(write_csv(tmp_path / "x.csv", None, NUMBERS, delimiter=delimiter))
    np.testing.assert_array_equal(split[:], VALUES)
    assert set(split.labels) == {-1}


def test_a_csv_that_was_exported_comes_back(make_store: Any, tmp_path: Path) -> None:
    store = actstore.from_arrays(
        tmp_path / "out.zarr", {"train": (VALUES, np.arange(300) % 6 - 1, IDS)}, classes=["0", "10", "b", "2", "x"]
    )
    (path,) = export(store["train"], tmp_path / "x.csv")
    split = imported(path)
    np.testing.assert_array_equal(split[:], VALUES)
    names = {-1: None, **dict(enumerate(store.classes))}
    again = {-1: None, **dict(enumerate(split.classes))}
    assert [again[label] for label in split.labels] == [names[label] for label in store["train"].labels]
    assert list(split.ids) == IDS


def test_numbered_labels_and_empty_cells(tmp_path: Path) -> None:
    labels = ["" if row == 4 else str(row % 3) for row in range(300)]
    split = imported(write_csv(tmp_path / "x.csv", [*FEATURES, "target"], [*NUMBERS, labels]))
    assert split.labels[:6].tolist() == [0, 1, 2, 0, -1, 2]
    assert split.classes == ("0", "1", "2")


@pytest.mark.parametrize("start", [0, 1, 37, 299])
@pytest.mark.parametrize("kind", ["csv", "parquet", "pt", "npy"])
def test_a_source_is_read_from_any_row_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, start: int
) -> None:
    monkeypatch.setattr("actstore.tables.row_source.BLOCK_BYTES", 2048)
    path = tmp_path / f"x.{kind}"
    if kind == "csv":
        write_csv(path, FEATURES, NUMBERS)
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(dict(zip(FEATURES, VALUES.T, strict=True))), path, row_group_size=64)
    elif kind == "pt":
        torch.save(torch.from_numpy(VALUES), path)
    else:
        np.save(path, np.asfortranarray(VALUES))
    rows = read_request(ImportRequest(path))[0]["train"].activations
    assert rows.shape == (300, 16)
    for stop in (start, min(start + 40, 300), 300):
        parts = [np.array(block) for block in rows.blocks(start, stop)]
        np.testing.assert_array_equal(np.concatenate([VALUES[:0], *parts]), VALUES[start:stop])


def test_a_parquet_with_a_column_per_feature(tmp_path: Path) -> None:
    columns = {
        "__index_level_0__": np.arange(300),
        **dict(zip(FEATURES, VALUES.T, strict=True)),
        "Label": NAMES,
        "id": IDS,
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    split = imported(tmp_path / "x.parquet")
    assert split.spec.dtype == "f4"
    np.testing.assert_array_equal(split[:], VALUES)
    assert list(split.ids) == IDS
    assert [split.classes[label] for label in split.labels] == NAMES


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("old", [False, True])
def test_tensors(tmp_path: Path, dtype: torch.dtype, old: bool) -> None:
    tensor = torch.from_numpy(VALUES).T.contiguous().T.to(dtype).requires_grad_()
    torch.save(tensor, tmp_path / "x.pt", _use_new_zipfile_serialization=not old)
    split = imported(tmp_path / "x.pt")
    assert split.spec.dtype == ("f2" if dtype == torch.float16 else "f4")
    np.testing.assert_array_equal(split[:], tensor.detach().float().numpy())


def test_a_dict_of_tensors_and_text(tmp_path: Path) -> None:
    values = torch.from_numpy(VALUES)
    torch.save(
        {"train": values, "train_labels": torch.arange(300) % 5, "val": values[:9], "val_labels": [1] * 9,
         "classes": ["a", "b", "c", "d", "e"], "epoch": 3},
        tmp_path / "x.pth",
    )  # fmt: skip
    store = import_file(ImportRequest(tmp_path / "x.pth"), tmp_path / "x.zarr")
    assert (list(store), store.classes) == (["train", "val"], ("a", "b", "c", "d", "e"))
    np.testing.assert_array_equal(store["train"].labels, np.arange(300) % 5)
    assert set(store["val"].labels) == {1}


@pytest.mark.parametrize("compressed", [False, True])
def test_fortran_order_in_an_archive(tmp_path: Path, compressed: bool) -> None:
    (np.savez_compressed if compressed else np.savez)(tmp_path / "x.npz", activations=np.asfortranarray(VALUES))
    np.testing.assert_array_equal(imported(tmp_path / "x.npz")[:], VALUES)


def test_bad_tables_are_refused_in_one_line(tmp_path: Path) -> None:
    def refused(message: str, path: Path) -> None:
        with pytest.raises(InvalidInputError, match=message) as caught:
            imported(path)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "x.zarr").exists()

    path = tmp_path / "x.csv"
    refused("column 'remark' of .* is not numbers", write_csv(path, ["f0", "remark"], [["1"], ["good"]]))
    refused("has no column of numbers", write_csv(path, ["path", "label"], [["a.jpg"], ["cat"]]))
    refused("column 'f0' is in .* twice", write_csv(path, ["f0", "f0"], [["1"], ["2"]]))
    refused("cannot be read as csv: .*banana", write_csv(path, ["f0", "f1"], [["1", "banana"], ["2", "3"]]))
    path.write_text("")
    refused("is empty", path)
    torch.save([1, 2], tmp_path / "x.pt")
    refused("holds a list; save a tensor", tmp_path / "x.pt")
    torch.save({"activations": Path("x")}, tmp_path / "x.pt")
    refused("must hold tensors only", tmp_path / "x.pt")
    torch.save(torch.ones(5), tmp_path / "x.pt")
    refused("holds 0 two-dimensional arrays", tmp_path / "x.pt")
    (tmp_path / "x.npy").write_bytes(b"")
    np.save(tmp_path / "x.npy", np.asfortranarray(VALUES))
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-100])
    refused("ends early", tmp_path / "x.npy")


# ---- text


def test_a_bom_is_no_part_of_a_name(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES[:3])
    for name, text in (("labels", "cat\r\ndog\r\ncat\r\n"), ("classes", "cat\ndog\n"), ("ids", "a\nb\nc\n")):
        (tmp_path / f"{name}.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    files = {name: tmp_path / f"{name}.txt" for name in ("labels", "classes", "ids")}
    split = imported(tmp_path / "x.npy", **files)
    assert split.classes == ("cat", "dog")
    assert split.labels.tolist() == [0, 1, 0]
    assert list(split.ids) == ["a", "b", "c"]


@pytest.mark.parametrize("what", ["labels", "ids", "classes"])
@pytest.mark.parametrize(("text", "line"), [("a\n\nb\n", 2), ("a\nb\n\n", 3), ("\n", 1), ("1\n2\n \n", 3)])
def test_a_blank_line_is_named(tmp_path: Path, what: str, text: str, line: int) -> None:
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(InvalidInputError, match=rf"line {line} of .*x\.txt is blank; expected {what}, one per line"):
        read_column(tmp_path / "x.txt", what)


def test_an_import_names_classes_that_train_lacks_and_rows_without_a_label(tmp_path: Path) -> None:
    labels = np.where(np.arange(300) == 7, -1, np.arange(300) % 2)
    np.savez(
        tmp_path / "x.npz",
        train=VALUES,
        train_labels=labels,
        val=VALUES[:4],
        val_labels=[0, 1, 2, 2],
        classes=list("abc"),
    )
    done = CliRunner().invoke(main, ["import", str(tmp_path / "x.npz"), str(tmp_path / "x.zarr")])
    assert "WARNING: val has a class that train lacks: 'c'" in done.stderr.splitlines()
    assert "without a label: 1 of train" in done.stdout


# ---- memory


def most_allocated(path: Path) -> int:
    """Bytes that arrow holds at most, of all moments when a block is handed over."""
    ((_, table),) = read_request(ImportRequest(path))[0].items()
    rows, before = table.activations, pyarrow.total_allocated_bytes()
    return max(pyarrow.total_allocated_bytes() - before for _ in rows.blocks(0, rows.shape[0]))


@pytest.mark.parametrize("row_group", [5_000, 1_000_000])
def test_memory_of_a_parquet_import_does_not_grow_with_the_file(tmp_path: Path, row_group: int) -> None:
    peaks = {}
    for count in (20_000, 100_000):  # 10 and 50 MB
        flat = pyarrow.array(np.random.default_rng(0).random(count * 256, np.float32).astype(np.float16))
        table = pyarrow.table({"activations": pyarrow.FixedSizeListArray.from_arrays(flat, 256)})
        pyarrow.parquet.write_table(table, tmp_path / "x.parquet", row_group_size=row_group)
        del flat, table
        peaks[count] = most_allocated(tmp_path / "x.parquet")
    assert peaks[100_000] < peaks[20_000] + 10e6, peaks

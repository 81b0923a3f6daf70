"""Array files in and out: every format, several splits, bad files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import actstore
from actstore.errors import InvalidInputError
from actstore.tables.exporting import export
from actstore.tables.importing import ImportRequest, append_file, import_file
from tests.actstore.tables.array_examples import LABELS, VALUES, save

ENDINGS = [".npy", ".npz", ".parquet", ".safetensors"]


@pytest.mark.parametrize("ending", [*ENDINGS, ".h5"])
def test_every_format_imports(tmp_path: Path, labels: Path, ending: str) -> None:
    store = import_file(ImportRequest(save(tmp_path / f"x{ending}"), labels=labels), tmp_path / "x.zarr")
    np.testing.assert_array_equal(store["train"][:], VALUES)
    np.testing.assert_array_equal(store["train"].labels, LABELS)
    assert store.classes == ("0", "1", "2", "3", "4")


@pytest.mark.parametrize("ending", [*ENDINGS, ".h5"])
def test_an_import_resumes_from_any_row(tmp_path: Path, ending: str) -> None:
    from actstore.tables.importing import ImportRequest, read_request

    tables, _ = read_request(ImportRequest(save(tmp_path / f"x{ending}")))
    rows = tables["train"].activations
    np.testing.assert_array_equal(np.concatenate([b.copy() for b in rows.blocks(123, 300)]), VALUES[123:])
    np.testing.assert_array_equal(np.concatenate([b.copy() for b in rows.blocks(7, 9)]), VALUES[7:9])


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_exported_imports_again(make_store: Any, tmp_path: Path, ending: str) -> None:
    store = make_store(rows=250)
    rows = np.array([200, 3, 3, 17, 249])
    written = export(store["train"], tmp_path / f"out{ending}", rows)
    beside = {"labels": written[1], "ids": written[2]} if ending == ".npy" else {}
    again = import_file(ImportRequest(written[0], **beside), tmp_path / "again.zarr")["train"]
    np.testing.assert_array_equal(again[:], store.values[rows])
    assert list(again.ids) == [store.ids[row] for row in rows]
    assert [again.classes[label] for label in again.labels] == [str(store.labels[row]) for row in rows]


def test_csv_export_keeps_values_apart(make_store: Any, tmp_path: Path) -> None:
    store = make_store(rows=20)
    (path,) = export(store["train"], tmp_path / "out.csv")
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0][:4] == ["row", "id", "class", "f0"]
    np.testing.assert_array_equal(np.array([line[3:] for line in lines[1:]], np.float16), store.values)


def test_safetensors_export_is_read_by_its_own_library(make_store: Any, tmp_path: Path) -> None:
    store = make_store(rows=20)
    (path,) = export(store["train"], tmp_path / "out.safetensors")
    loaded = load_file(path)
    np.testing.assert_array_equal(loaded["activations"], store.values)
    np.testing.assert_array_equal(loaded["labels"], store.labels)


def test_a_file_of_several_splits(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz", train=VALUES, train_labels=LABELS, val=VALUES[:7], val_labels=LABELS[:7],
        classes=np.array(list("abcde")), fc_weight=VALUES[:5],
    )  # fmt: skip
    store = import_file(ImportRequest(tmp_path / "x.npz"), tmp_path / "x.zarr")
    assert {name: split.rows for name, split in store.splits.items()} == {"train": 300, "val": 7}
    assert store.classes == ("a", "b", "c", "d", "e")
    only = import_file(ImportRequest(tmp_path / "x.npz", array="fc_weight", split="fc"), tmp_path / "y.zarr")
    assert list(only.splits) == ["fc"]


def test_classes_of_another_order_are_refused(tmp_path: Path, labels: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("a\nb\nc\nd\ne\n")
    import_file(ImportRequest(save(tmp_path / "x.npy"), labels=labels, classes=names), tmp_path / "x.zarr")
    names.write_text("b\na\nc\nd\ne\n")
    with pytest.raises(InvalidInputError, match="does not begin with the store's own classes"):
        append_file(ImportRequest(save(tmp_path / "y.npy"), labels=labels, classes=names), tmp_path / "x.zarr")


BAD_FILES: dict[str, tuple[str, Any, str]] = {
    "absent": ("x.npy", None, "no such file"),
    "ending": ("x.txt", b"1 2 3", "has ending '.txt'; expected one of"),
    "not npy": ("x.npy", b"hello", "not a numpy array file"),
    "not npz": ("x.npz", b"hello", "not an .npz archive"),
    "not h5": ("x.h5", b"hello", "cannot be read as .h5"),
    "not parquet": ("x.parquet", b"hello", "cannot be read as .parquet"),
    "not safetensors": ("x.safetensors", b"hello", "cannot be read as .safetensors"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_one_clear_line(tmp_path: Path, case: str) -> None:
    name, data, message = BAD_FILES[case]
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidInputError, match=message) as caught:
        import_file(ImportRequest(tmp_path / name), tmp_path / "x.zarr")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "x.zarr").exists()


def test_bad_arrays(tmp_path: Path, labels: Path) -> None:
    def refused(message: str, values: Any, **more: Any) -> None:
        np.save(tmp_path / "x.npy", values)
        with pytest.raises(InvalidInputError, match=message):
            import_file(ImportRequest(tmp_path / "x.npy", **more), tmp_path / "x.zarr")

    refused("two-dimensional array, got shape", np.ones(5))
    refused("Python objects, which are never unpickled", np.array([[{}]], dtype=object))
    refused("has 4 rows but 300 labels", VALUES[:4], labels=labels)
    np.save(tmp_path / "x.npy", VALUES)
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:-1000])
    with pytest.raises(InvalidInputError, match="ends early"):
        import_file(ImportRequest(tmp_path / "x.npy"), tmp_path / "x.zarr")


def test_queries_combine(make_store: Any, tmp_path: Path) -> None:
    store = make_store()
    train = store["train"]
    expected = [row for row in range(100, 500) if store.labels[row] in (2, 5) and store.ids[row].endswith("1.jpg")]
    assert train.query(classes=["2", 5], path_glob="*1.jpg", rows="100:500").tolist() == expected
    (tmp_path / "rows.txt").write_text("5 3\n900\n")
    assert train.query(rows=tmp_path / "rows.txt").tolist() == [3, 5, 900]
    np.save(tmp_path / "rows.npy", [1, 0])
    assert train.query(rows=tmp_path / "rows.npy").tolist() == [0, 1]
    assert train.query(rows=slice(None, 10, 5)).tolist() == [0, 5]
    assert len(train.query()) == 1000
    for bad in ("1:x", "nowhere.txt"):
        with pytest.raises(InvalidInputError):
            train.query(rows=bad)


def test_export_refuses_an_unknown_ending_and_leaves_nothing_half_done(make_store: Any, tmp_path: Path) -> None:
    store = make_store(rows=200)
    with pytest.raises(InvalidInputError, match=r"cannot export to 'x\.doc'"):
        export(store["train"], tmp_path / "x.doc")

    def fail(_: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        export(store["train"], tmp_path / "x.npy", progress=fail)
    assert not list(tmp_path.glob("x.npy*"))


def test_the_real_activations_import(real_activations: Path, tmp_path: Path) -> None:
    store = import_file(ImportRequest(real_activations), tmp_path / "mini.zarr")
    with np.load(real_activations) as file:
        np.testing.assert_array_equal(store["val"][:], file["val"])
        np.testing.assert_array_equal(store["train"].labels, file["train_labels"])
        means = np.stack([file["train"][file["train_labels"] == c].astype(float).mean(0) for c in range(100)])
    np.testing.assert_allclose(store["train"].means(), means, rtol=6e-5)
    assert json.dumps(store["train"].committed.to_json())


def test_bytes_ids_object_labels_reversed_and_empty_input(tmp_path: Path) -> None:
    ids = np.array([f"i{row}".encode() for row in range(300)])
    np.savez(tmp_path / "x.npz", activations=VALUES, ids=ids)
    store = import_file(ImportRequest(tmp_path / "x.npz"), tmp_path / "x.zarr")
    assert store["train"].ids[7] == "i7"
    numbers = actstore.from_arrays(tmp_path / "y.zarr", {"train": (VALUES[::-1], LABELS.astype(object))})
    np.testing.assert_array_equal(numbers["train"].labels, LABELS)
    np.testing.assert_array_equal(numbers["train"][:], VALUES[::-1])
    np.save(tmp_path / "none.npy", VALUES[:0])
    for _ in range(2):
        assert len(import_file(ImportRequest(tmp_path / "none.npy"), tmp_path / "z.zarr")["train"]) == 0


def test_unlabelled_rows_and_class_order_survive_parquet(tmp_path: Path) -> None:
    labels = np.where(np.arange(300) % 3, np.arange(300) % 12, -1)
    names = [f"class {n}" for n in range(12)][::-1]
    ids = [f"line\u2028separator {row}" for row in range(300)]
    store = actstore.from_arrays(tmp_path / "x.zarr", {"train": (VALUES, labels, ids)}, classes=names)
    for ending in ENDINGS:
        path, *beside = export(store["train"], tmp_path / f"out{ending}")
        more = {"labels": beside[0], "ids": beside[1]} if beside else {}
        again = import_file(ImportRequest(path, **more), tmp_path / f"again{ending}.zarr")
        np.testing.assert_array_equal(again["train"].labels, labels)
        assert list(again["train"].ids) == ids
        assert ending == ".npy" or again.classes == tuple(names)


def test_a_first_import_that_was_refused_may_come_with_another_dtype(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES * 1e6)
    with pytest.raises(InvalidInputError, match="use dtype f4"):
        import_file(ImportRequest(tmp_path / "x.npy"), tmp_path / "x.zarr", dtype="f2")
    store = import_file(ImportRequest(tmp_path / "x.npy"), tmp_path / "x.zarr", dtype="f4")
    assert store["train"].dtype == np.float32

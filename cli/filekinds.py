"""Which kind of file of ours a file is, by its content; read no further than it takes to tell."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LONGEST = 100 << 20  # bytes of a JSON document or header that is parsed


@dataclass(frozen=True)
class Kind:
    """name: with its article. is_work: whether it took the user's work, so that only --force replaces it."""

    name: str
    test: Callable[[Path], bool]
    is_work: bool = False

    def matches(self, path: Path) -> bool:
        """An empty file is of no kind, nor is one that cannot be read."""
        try:
            return path.stat().st_size > 0 and self.test(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zipfile.BadZipFile):
            return False


def _head(path: Path, count: int = 4096) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8")) if path.stat().st_size <= _LONGEST else None


def _header(path: Path) -> dict[str, Any]:
    """Of a safetensors file: tensor names, and __metadata__."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        found = json.loads(file.read(size)) if size <= _LONGEST else None
    return found if isinstance(found, dict) else {}


def _holds(kind: str) -> Callable[[Path], bool]:
    """A file of `actstore.storage.tensor_file`."""
    return lambda path: json.loads(_header(path)["__metadata__"]["actstore"])["kind"] == kind


def _metadata(*keys: str) -> Callable[[Path], bool]:
    return lambda path: set(keys) <= set(_header(path)["__metadata__"])


def _begins(*beginnings: str) -> Callable[[Path], bool]:
    return lambda path: _head(path).startswith(tuple(one.encode() for one in beginnings))


def _object(*keys: str) -> Callable[[Path], bool]:
    return lambda path: isinstance(found := _json(path), dict) and set(keys) <= set(found)


def _list_of(*keys: str) -> Callable[[Path], bool]:
    return lambda path: isinstance(found := _json(path), list) and bool(found) and set(keys) <= set(found[0])


def _is_drawn(path: Path) -> bool:
    """By matplotlib, which says so in PNG and SVG alike: a photo is none."""
    head = _head(path)
    return head.startswith((b"\x89PNG", b"<?xml")) and b"atplotlib" in head


def _is_report(path: Path) -> bool:
    head = _head(path, 1 << 20)
    return head.startswith(b"<!doctype html>") and b"<p>Predicting the parameters of a classifier from" in head


def _is_sheet(path: Path) -> bool:
    head = _head(path)
    return head.startswith(b"<!doctype html>") and b'content="actstore photo sheet"' in head


def _is_torch_export(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        return b"row_category" in archive.read(name)  # looked at, never opened as a pickle


def _is_onnx_export(path: Path) -> bool:
    head = _head(path, 32)  # ir_version, then producer_name of eight letters
    return head.startswith(b"\x08") and b"\x12\x08actstore" in head


def array_of(dtypes: str, *shape: int | None) -> Callable[[Path], bool]:
    """A .npy whose type is of these kinds and whose shape is this; None: any."""

    def test(path: Path) -> bool:
        from numpy.lib import format as npy

        with path.open("rb") as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            found, _, dtype = read(file)
        same = len(found) == len(shape) and all(b in (None, a) for a, b in zip(found, shape, strict=True))
        return same and f"{dtype.kind}{dtype.itemsize}" in dtypes.split()

    return test


def _is_row_list(path: Path) -> bool:
    text = _head(path, 1 << 20)
    return re.fullmatch(rb"(\d+\n)*(\d*)", text) is not None


def _is_archive(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return {"activations.npy", "labels.npy", "ids.npy", "classes.npy"} <= set(archive.namelist())


def _is_parquet_export(path: Path) -> bool:
    import pyarrow
    import pyarrow.parquet

    try:
        return list(pyarrow.parquet.read_schema(path).names)[:3] == ["id", "label", "activations"]
    except pyarrow.ArrowException:
        return False


def _is_columns_export(path: Path) -> bool:
    import pyarrow
    import pyarrow.parquet

    try:
        return (pyarrow.parquet.read_schema(path).metadata or {}).get(b"actstore") == b"columns"
    except pyarrow.ArrowException:
        return False


def _is_findings_table(path: Path) -> bool:
    import pyarrow
    import pyarrow.parquet

    try:
        return list(pyarrow.parquet.read_schema(path).names)[:4] == ["kind", "leak", "split", "row"]
    except pyarrow.ArrowException:
        return False


def _is_contact_sheet(path: Path) -> bool:
    head = _head(path)
    return head.startswith(b"<!doctype html>") and b'<meta name="generator" content="actstore audit">' in head


def _is_tensor_export(path: Path) -> bool:
    return {"activations", "labels", "path_bytes", "path_offsets"} <= set(_header(path))


CLASSIFIER = Kind("a classifier of `ppa adapt`", _holds("classifier"), is_work=True)
OWN_CLASSIFIER = Kind("a classifier of this demo", _holds("classifier"))
PHOTO_LIST = Kind("a list of photos", _begins("path,label"))
SPLIT = Kind("a split of `ppa split`", _object("base", "novel", "validation"), is_work=True)
CALIBRATION = Kind("a calibration of `ppa calibrate`", lambda path: b'"novel_bias"' in _head(path), is_work=True)
FIGURE = Kind("a figure drawn here", _is_drawn)
TORCH = Kind("a layer of `ppa export --torch`", _is_torch_export)
ONNX = Kind("a graph of `ppa export --onnx`", _is_onnx_export)
NAMES = Kind("the category names of a `ppa export`", _object("categories", "dim"))
REPORT = Kind("a report of `ppa report`", _is_report)
SHEET = Kind("a sheet of photos", _is_sheet)
CLASS_MAP = Kind("a class map of `ppa figures`", _object("names"))
BENCH = Kind("a benchmark's JSON", _list_of("name", "value", "unit"))
STEPS = Kind("the record of a demo", _object("version", "steps"))
TRAINING = Kind("a training's weights", _holds("training"))
ABOUT_TRAINING = Kind("a training's description", _object("identity"))
STORE_NOTE = Kind("a note of the store a training read", _object("store"))
LOG = Kind("a training's log", _begins("step,", "step\n", "epoch,step,"))
PLAN = Kind("the plan of a training", _object("asked", "config"))
WEIGHTS = Kind("a backbone's weights", _metadata("backbone"))
HEAD = Kind("a trained classifier", _metadata("classes"))
BACKBONE_CHECKPOINT = Kind(
    "a checkpoint of `ppa pretrain`", lambda path: _metadata("training")(path) or TRAINING.test(path)
)  # the former is of earlier releases
TABLES = {
    ".md": Kind("a table", _begins("| method")),
    ".csv": Kind("a table", _begins("method,")),
    ".json": Kind("a table", _list_of("method")),
}
AUDIT = Kind("an audit", _holds("audit"))
AUDIT_SHEET = Kind("a page of `actstore audit`", _is_contact_sheet)
AUDIT_TABLES = {
    ".csv": Kind("the findings of an audit", _begins("kind,leak,split,row,")),
    ".parquet": Kind("the findings of an audit", _is_findings_table),
}
ROWS = Kind("a list of row numbers", _is_row_list)
ROW_ARRAY = Kind("an array of row numbers", array_of("i8", None))
EXPORTS = {
    ".npz": Kind("an export", _is_archive),
    ".parquet": Kind("an export", _is_parquet_export),
    ".csv": Kind("an export", _begins("row,id,class,")),
    ".safetensors": Kind("an export", _is_tensor_export),
}


def means_array(classes: int, dim: int) -> Kind:
    return Kind("an array of class means", array_of("f4", classes, dim))


def exported_array(dim: int) -> Kind:
    return Kind("an export of such rows", array_of("f2 f4", None, dim))


COLUMNS = Kind("an export's columns", _is_columns_export)
LABELS_ARRAY = Kind("an export's labels", array_of("i4", None))


def exported_ids(array: Path) -> Kind:
    """Text says nothing about itself: it is an export's where it has a line for each row of the array beside it."""

    def test(path: Path) -> bool:
        from numpy import load

        return path.read_bytes().count(b"\n") == len(load(array, mmap_mode="r", allow_pickle=False))

    return Kind("an export's ids", test)

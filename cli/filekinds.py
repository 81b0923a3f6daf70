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
Test = Callable[[Path], bool]


@dataclass(frozen=True)
class Kind:
    """name: with its article. is_work: whether it took the user's work, so that only --force replaces it."""

    name: str
    test: Test
    is_work: bool = False

    def matches(self, path: Path) -> bool:
        """An empty file is of no kind, nor is one that cannot be read."""
        try:
            return path.stat().st_size > 0 and self.test(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zipfile.BadZipFile):
            return False


def _begins(*beginnings: str, mark: str = "", within: int = 4096) -> Test:
    """As one of these, with a mark among the first bytes."""

    def test(path: Path) -> bool:
        head = _head(path, within)
        return head.startswith(tuple(text.encode("latin-1") for text in beginnings)) and mark.encode() in head

    return test


def _mentions(mark: str, within: int = 4096) -> Test:
    return lambda path: mark.encode() in _head(path, within)


def _head(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8")) if path.stat().st_size <= _LONGEST else None


def _object(*keys: str) -> Test:
    return lambda path: isinstance(value := _json(path), dict) and set(keys) <= set(value)


def _list_of(*keys: str) -> Test:
    return lambda path: isinstance(value := _json(path), list) and bool(value) and set(keys) <= set(value[0])


def _header(path: Path) -> dict[str, Any]:
    """Of a safetensors file: tensor names, and __metadata__."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size)) if size <= _LONGEST else None
    return header if isinstance(header, dict) else {}


def _tensors(*names: str) -> Test:
    return lambda path: set(names) <= set(_header(path))


def _metadata(*keys: str) -> Test:
    return lambda path: set(keys) <= set(_header(path)["__metadata__"])


def _holds(kind: str) -> Test:
    """A file of `actstore.storage.tensor_file`."""
    return lambda path: json.loads(_header(path)["__metadata__"]["actstore"])["kind"] == kind


def array_of(dtypes: str, *shape: int | None) -> Test:
    """A .npy whose type is of these kinds and whose shape is this; None: any."""

    def test(path: Path) -> bool:
        from numpy.lib import format as npy

        with path.open("rb") as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            sizes, _, dtype = read(file)
        same = len(sizes) == len(shape) and all(b in (None, a) for a, b in zip(sizes, shape, strict=True))
        return same and f"{dtype.kind}{dtype.itemsize}" in dtypes.split()

    return test


def _parquet(*columns: str, metadata: bytes | None = None) -> Test:
    """A table that begins with these columns, with this said of it under `actstore`."""

    def test(path: Path) -> bool:
        import pyarrow
        import pyarrow.parquet

        try:
            schema = pyarrow.parquet.read_schema(path)
        except pyarrow.ArrowException:
            return False
        said = (schema.metadata or {}).get(b"actstore")
        return tuple(schema.names[: len(columns)]) == columns and metadata in (None, said)

    return test


def _zip_of(*names: str) -> Test:
    def test(path: Path) -> bool:
        with zipfile.ZipFile(path) as archive:
            return set(names) <= set(archive.namelist())

    return test


def _is_torch_export(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        return b"row_category" in archive.read(name)  # looked at, never opened as a pickle


CLASSIFIER = Kind("a classifier of `ppa adapt`", _holds("classifier"), is_work=True)
OWN_CLASSIFIER = Kind("a classifier of this demo", _holds("classifier"))
PHOTO_LIST = Kind("a list of photos", _begins("path,label"))
SPLIT = Kind("a split of `ppa split`", _object("base", "novel", "validation"), is_work=True)
CALIBRATION = Kind("a calibration of `ppa calibrate`", _begins("", mark='"novel_bias"'), is_work=True)
# matplotlib says so in PNG and SVG alike: a photo is none
FIGURE = Kind("a figure drawn here", _begins("\x89PNG", "<?xml", mark="atplotlib"))
TORCH = Kind("a layer of `ppa export --torch`", _is_torch_export)
# ir_version, then producer_name of eight letters
ONNX = Kind("a graph of `ppa export --onnx`", _begins("\x08", mark="\x12\x08actstore", within=32))
NAMES = Kind("the category names of a `ppa export`", _object("categories", "dim"))
_REPORT_MARK = "<p>Predicting the parameters of a classifier from"
REPORT = Kind("a report of `ppa report`", _begins("<!doctype html>", mark=_REPORT_MARK, within=1 << 20))
SHEET = Kind("a sheet of photos", _begins("<!doctype html>", mark='content="actstore photo sheet"'))
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
PREDICTIONS = Kind("a list of `ppa predict`", _begins("image,"))
BENCH_TABLES = {
    ".md": Kind("a table of `ppa bench-inference`", _mentions("|  | batch | ms/image |")),
    ".csv": Kind("a table of `ppa bench-inference`", _begins("part,batch,ms/image")),
    ".json": BENCH,
}
AUDIT = Kind("an audit", _holds("audit"))
AUDIT_SHEET = Kind("a page of `actstore audit`", _begins("<!doctype html>", mark='content="actstore audit"'))
AUDIT_TABLES = {
    ".csv": Kind("the findings of an audit", _begins("kind,leak,split,row,")),
    ".parquet": Kind("the findings of an audit", _parquet("kind", "leak", "split", "row")),
}
COMPARISON = Kind("a table of `actstore compare`", _begins("one,other,measure,value,low,high"))
GRAPHS = {
    ".npz": Kind("a graph of `actstore knn`", _zip_of("indices.npy", "indptr.npy", "shape.npy", "data.npy")),
    ".parquet": Kind("a graph of `actstore knn`", _parquet("row", "rank", "neighbour", "score")),
}
ROWS = Kind("a list of row numbers", lambda path: re.fullmatch(rb"(\d+\n)*(\d*)", _head(path, 1 << 20)) is not None)
ROW_ARRAY = Kind("an array of row numbers", array_of("i8", None))
EXPORTS = {
    ".npz": Kind("an export", _zip_of("activations.npy", "labels.npy", "ids.npy", "classes.npy")),
    ".parquet": Kind("an export", _parquet("id", "label", "activations")),
    ".csv": Kind("an export", _begins("row,id,class,")),
    ".safetensors": Kind("an export", _tensors("activations", "labels", "path_bytes", "path_offsets")),
}
COLUMNS = Kind("an export's columns", _parquet(metadata=b"columns"))
LABELS_ARRAY = Kind("an export's labels", array_of("i4", None))


def means_array(classes: int, dim: int) -> Kind:
    return Kind("an array of class means", array_of("f4", classes, dim))


def exported_array(dim: int) -> Kind:
    return Kind("an export of such rows", array_of("f2 f4", None, dim))


def exported_ids(array: Path) -> Kind:
    """Text says nothing about itself: it is an export's where it has a line for each row of the array beside it."""

    def test(path: Path) -> bool:
        from numpy import load

        return path.read_bytes().count(b"\n") == len(load(array, mmap_mode="r", allow_pickle=False))

    return Kind("an export's ids", test)

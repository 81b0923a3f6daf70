"""Array files by their ending: which arrays they hold, and which of them are splits."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError, reason_of
from actstore.layout.columns import Column
from actstore.layout.image_ids import Ids
from actstore.layout.texts import Texts
from actstore.spec import ColumnKind, parse_column_name
from actstore.storage.npy_file import load_npy
from actstore.tables.column_files import NUMBERING, is_plain, parquet_column
from actstore.tables.containers import HdfRows, ParquetRows, SafetensorsRows
from actstore.tables.npy import member_headers, npy_rows, npz_rows, open_member
from actstore.tables.row_source import ArrayRows, RowSource, Table
from actstore.tables.wide_tables import WideCsv, WideParquet, WideRows, WideTable
from actstore.writing.column_checks import parse_column

ENDINGS = (".npy", ".npz", ".h5", ".hdf5", ".parquet", ".csv", ".safetensors", ".pt", ".pth")


@dataclass(frozen=True)
class ArrayFile:
    """shapes: of every array in the file, by name. rows: opens a large one. values: loads a small one."""

    shapes: Mapping[str, tuple[int, ...]]
    rows: Callable[[str], RowSource]
    values: Callable[[str], NDArray[Any]]
    columns: Mapping[str, Callable[[], Column]] = field(default_factory=dict)  # what is plainly a column, unasked for


def open_tables(
    path: Path,
    array: str | None,
    split: str | None,
    columns: Sequence[str] = (),
    kinds: Mapping[str, ColumnKind] | None = None,
) -> tuple[dict[str, Table], list[str] | None]:
    """{split name: table} and class names, where the file has them.

    With `array`, that array alone becomes `split` (default "train"). Otherwise every two-dimensional
    array K beside a K_labels becomes split K; else the only two-dimensional array, with `labels`. columns: which arrays
    or columns of the file, K_NAME or NAME, are kept beside the rows; by default those that can be nothing else.
    """
    if not path.exists():
        raise InvalidInputError(f"no such file: {path}")
    if path.suffix not in ENDINGS:
        raise InvalidInputError(f"{path} has ending {path.suffix!r}; expected one of {', '.join(ENDINGS)}")
    file = _open(path, columns, kinds or {})
    keys = _choose(path, file, array, split)
    tables = {}
    for name, key in keys.items():
        labels = next((name for name in (f"{key}_labels", "labels", "label") if name in file.shapes), None)
        ids = next((name for name in (f"{key}_ids", "ids", "id") if name in file.shapes), None)
        tables[name] = Table(
            file.rows(key),
            None if labels is None else file.values(labels),
            None if ids is None else as_text(file.values(ids)),
            _columns_of(path, file, key, columns),
        )
    classes = as_text(file.values("classes")) if "classes" in file.shapes else None
    return tables, classes


def _columns_of(path: Path, file: ArrayFile, key: str, wanted: Sequence[str]) -> dict[str, Column]:
    if not wanted:
        return {name: read() for name, read in file.columns.items()}
    found = {}
    for name in wanted:
        if name in file.columns:
            found[name] = file.columns[name]()
            continue
        stored = next((one for one in (f"{key}_{name}", name) if len(file.shapes.get(one, ())) == 1), None)
        if stored is None:
            have = [*file.columns, *(one for one, shape in file.shapes.items() if len(shape) == 1)]
            raise InvalidInputError(f"{path} has no column {name!r}; it has: {_list(list(dict.fromkeys(have)))}")
        found[name] = parse_column(name, file.values(stored))
    return found


def as_text(values: NDArray[Any]) -> list[str]:
    """Ids or names as strings, also where they were stored as bytes."""
    try:
        return [text.decode() if isinstance(text, bytes) else str(text) for text in values.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"ids or names hold {error.object!r}, expected text in UTF-8; decode them") from None


def read_column(path: Path, what: str) -> NDArray[Any]:
    """Labels or ids in a file of their own: .npy, or text with one value per line."""
    if not path.exists():
        raise InvalidInputError(f"no such {what} file: {path}")
    if path.suffix == ".npy":
        return np.atleast_1d(load_npy(path, f"a list of {what}"))
    try:
        # not splitlines: an id may hold one of the rarer line separators of Unicode
        lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").replace("\r\n", "\n").split("\n")
        numeric = what == "labels" and all(re.fullmatch(r"\s*-?[0-9]+\s*", line) for line in lines)
        values = np.array([int(line) for line in lines], np.int64) if numeric else np.array(lines, dtype=object)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidInputError(f"{path} is not a list of {what}: {reason_of(error)}") from error
    _refuse_blank(path, what, lines)
    return values


def _refuse_blank(path: Path, what: str, lines: Sequence[str]) -> None:
    blank = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if blank is not None:
        none = "; -1 among numbers stands for no label" if what == "labels" else ""
        raise InvalidInputError(
            f"line {blank} of {path} is blank; expected {what}, one per line{none}; fill it in or remove it"
        )


def _choose(path: Path, file: ArrayFile, array: str | None, split: str | None) -> dict[str, str]:
    matrices = [name for name, shape in file.shapes.items() if len(shape) == 2]
    if array is not None:
        if array not in matrices:
            raise InvalidInputError(f"{path} has no two-dimensional array {array!r}; it has: {_list(matrices)}")
        return {split or "train": array}
    labelled = {name: name for name in matrices if f"{name}_labels" in file.shapes}
    if split is not None and split in labelled:
        return {split: split}
    if labelled and split is None:
        return labelled
    if len(matrices) == 1:
        return {split or "train": matrices[0]}
    raise InvalidInputError(
        f"{path} holds {len(matrices)} two-dimensional arrays ({_list(matrices)}); choose one with --array"
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _open(path: Path, columns: Sequence[str], kinds: Mapping[str, ColumnKind]) -> ArrayFile:
    try:
        if path.suffix == ".npy":
            rows = npy_rows(path)
            return ArrayFile({"activations": rows.shape}, lambda _: rows, _no_values)
        if path.suffix == ".npz":
            headers = member_headers(path)
            shapes = {name: shape for name, (shape, _) in headers.items()}
            found = _named_columns(shapes, lambda name: _load_member(path, name))
            return ArrayFile(shapes, lambda name: npz_rows(path, name), lambda name: _load_member(path, name), found)
        if path.suffix == ".parquet":
            return _open_parquet(path, columns)
        if path.suffix == ".csv":
            return _open_wide(WideCsv(path, columns, kinds))
        if path.suffix in (".pt", ".pth"):
            return _open_torch(path)
        return _open_safetensors(path) if path.suffix == ".safetensors" else _open_hdf(path)
    except (OSError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise InvalidInputError(f"{path} cannot be read as {path.suffix}: {reason_of(error)}") from error


def _named_columns(
    shapes: Mapping[str, tuple[int, ...]], values: Callable[[str], NDArray[Any]]
) -> dict[str, Callable[[], Column]]:
    """An export lists its columns in an array of that name."""
    if len(shapes.get("columns", ())) != 1:
        return {}
    names = [name for name in as_text(values("columns")) if len(shapes.get(name, ())) == 1]
    return {name: partial(lambda one: parse_column(one, values(one)), name) for name in names}


def _no_values(name: str) -> NDArray[Any]:
    raise KeyError(name)


def _load_member(path: Path, name: str) -> NDArray[Any]:
    with open_member(path, name) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _is_name(name: str) -> bool:
    """Whether a column may be called so; one that may not is left out, unless it is asked for."""
    try:
        return bool(parse_column_name(name))
    except InvalidInputError:
        return False


def _open_hdf(path: Path) -> ArrayFile:
    import h5py

    def values(name: str) -> NDArray[Any]:
        with h5py.File(path, "r") as file:
            data = file[name]
            return np.asarray(data.asstr()[()] if h5py.check_string_dtype(data.dtype) else data[()])

    with h5py.File(path, "r") as file:
        shapes = {name: tuple(item.shape) for name, item in file.items() if hasattr(item, "shape")}
    return ArrayFile(shapes, lambda name: HdfRows(path, name), values)


def _open_safetensors(path: Path) -> ArrayFile:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
            text = {"classes": json.loads(metadata["classes"])} if "classes" in metadata else {}
            kinds = json.loads(metadata.get("columns", "{}"))
    except (SafetensorError, ValueError) as error:
        raise InvalidInputError(f"{path} cannot be read as .safetensors: {error}") from error

    def values(name: str) -> NDArray[Any]:
        if name in text:  # safetensors has no strings; class names travel in its metadata, ids as bytes
            return np.array(text[name], dtype=object)
        if name == "ids":
            with safe_open(path, "numpy") as file:
                return np.array(list(Ids(file.get_tensor("path_bytes"), file.get_tensor("path_offsets"))), dtype=object)
        with safe_open(path, "numpy") as file:
            return np.asarray(file.get_tensor(name))

    def column(name: str) -> Column:
        with safe_open(path, "numpy") as file:
            if kinds[name] != "text":
                return Column(kinds[name], file.get_tensor(name))
            return Column("text", Texts(file.get_tensor(f"{name}.bytes"), file.get_tensor(f"{name}.offsets")))

    columns = {key: (len(text[key]),) for key in text}
    if {"path_bytes", "path_offsets"} <= set(shapes):
        columns["ids"] = (shapes["path_offsets"][0] - 1,)
    found = {name: partial(column, name) for name in kinds}
    return ArrayFile({**shapes, **columns}, lambda name: SafetensorsRows(path, name), values, found)


def _open_wide(table: WideTable) -> ArrayFile:
    columns = {name: partial(table.column, name) for name in table.columns.kept}
    return ArrayFile(table.shapes(), lambda _: WideRows(table), table.values, columns)


def _open_torch(path: Path) -> ArrayFile:
    from actstore.tables.torch_tensors import TensorRows, as_array, read_tensor_file

    tensors = read_tensor_file(path)

    def values(name: str) -> NDArray[Any]:
        values = tensors[name]
        return values if isinstance(values, np.ndarray) else as_array(values)

    def rows(name: str) -> RowSource:
        values = tensors[name]
        return ArrayRows(values) if isinstance(values, np.ndarray) else TensorRows(values)

    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return ArrayFile(shapes, rows, values)


def _open_parquet(path: Path, columns: Sequence[str]) -> ArrayFile:
    import pyarrow.parquet
    import pyarrow.types

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
    except pyarrow.ArrowInvalid as error:
        raise InvalidInputError(f"{path} cannot be read as .parquet: {error}") from error
    is_list = (pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list)
    nested = {field.name for field in schema if any(test(field.type) for test in is_list)}
    if not nested:
        return _open_wide(WideParquet(path, schema, count, columns))
    classes = (schema.metadata or {}).get(b"classes")
    shapes = {field.name: (count, 0) if field.name in nested else (count,) for field in schema}

    if classes is not None:
        shapes["classes"] = (len(json.loads(classes)),)

    def values(name: str) -> NDArray[Any]:
        if name == "classes" and classes is not None:
            return np.array(json.loads(classes), dtype=object)
        return np.array(pyarrow.parquet.read_table(path, columns=[name]).column(0).to_pylist(), dtype=object)

    plain = [field.name for field in schema if is_plain(field.type) and field.type != pyarrow.uint64()]
    offered = [name for name in plain if _is_name(name) and name.lower() not in NUMBERING]
    found = {name: partial(parquet_column, path, name) for name in schema.names if name in {*offered, *columns}}
    return ArrayFile(shapes, lambda name: ParquetRows(path, name), values, found)

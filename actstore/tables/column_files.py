"""Columns in files of other tools: of arrow, as cells of a csv, as tensors; there and back."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError, reason_of
from actstore.layout.columns import Column
from actstore.layout.texts import Texts
from actstore.spec import ColumnKind
from actstore.writing.row_checks import parse_column

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

NUMBERING = ("", "row", "index", "unnamed: 0", "__index_level_0__")  # of rows, as this tool and pandas write it
_READ_BYTES = 1 << 16  # of each column of a parquet file at a time: a wide table has thousands of them
_LONGEST_LINE = 1 << 24  # of a csv: a file that is none may have no lines
_TENSORS = {"bool": "I8", "int": "I64", "float": "F64", "date": "I64"}
# What all cells of a column look like -> how each is read. float() alone takes more: 007, 12_34 and digits of other
# scripts are texts.
_READERS: dict[re.Pattern[str], Callable[[str], Any]] = {
    re.compile(r"true|false", re.IGNORECASE): lambda cell: cell.lower() == "true",
    re.compile(r"[+-]?(0|[1-9]\d*)", re.ASCII): int,
    re.compile(r"[+-]?(((0|[1-9]\d*)(\.\d*)?|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)", re.ASCII | re.IGNORECASE): float,
    re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?", re.ASCII): datetime.fromisoformat,
}


def arrow_type(kind: ColumnKind) -> pyarrow.DataType:
    import pyarrow

    return {
        "bool": pyarrow.bool_(), "int": pyarrow.int64(), "float": pyarrow.float64(), "date": pyarrow.timestamp("us"),
        "text": pyarrow.string(),
    }[kind]  # fmt: skip


def arrow_values(column: Column) -> pyarrow.Array:
    """Missing ones are null; a text of no letters is one."""
    import pyarrow

    if isinstance(column.stored, Texts):
        values: Any = np.array([*column.stored, None], dtype=object)[:-1]
    else:
        values = column.stored.astype(bool) if column.kind == "bool" else column.stored
        values = values.view("M8[us]") if column.kind == "date" else values
    return pyarrow.array(values, arrow_type(column.kind), mask=column.missing())


def arrow_file(columns: Mapping[str, Column]) -> bytes:
    """A parquet file of columns alone, which says that it is one of ours."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema(
        {name: arrow_type(column.kind) for name, column in columns.items()}, metadata={"actstore": "columns"}
    )
    stream = io.BytesIO()
    arrays = [arrow_values(column) for column in columns.values()]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), stream)
    return stream.getvalue()


def cells_of(column: Column) -> list[str]:
    """As a csv has them: dates in ISO, nothing where there is no value."""
    if isinstance(column.stored, Texts):
        return list(column.stored)
    missing = column.missing().tolist()
    if column.kind == "date":
        shown = [str(value).removesuffix("T00:00:00.000000") for value in column.values()]
    elif column.kind == "bool":
        shown = ["true" if value else "false" for value in column.stored.tolist()]
    else:
        shown = [repr(value) for value in column.stored.tolist()]
    return ["" if none else text for none, text in zip(missing, shown, strict=True)]


def tensors_of(name: str, column: Column) -> dict[str, tuple[str, NDArray[Any]]]:
    """Under the names of the arrays in a store: (type in a safetensors file, values)."""
    if isinstance(column.stored, Texts):
        return {f"{name}.offsets": ("I64", column.stored.offsets), f"{name}.bytes": ("U8", column.stored.data)}
    return {name: (_TENSORS[column.kind], column.stored)}


def column_of_arrow(name: str, values: pyarrow.ChunkedArray | pyarrow.Array, where: str) -> Column:
    """Numbers, truth values, text and dates, also those of a time zone, which become UTC."""
    import pyarrow
    import pyarrow.compute
    import pyarrow.types as types

    kind = values.type
    if types.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    if types.is_timestamp(kind) or types.is_date(kind):
        moments = values.cast(pyarrow.timestamp("us", getattr(kind, "tz", None)), safe=False)
        filled = pyarrow.compute.fill_null(moments.cast(pyarrow.int64()), np.iinfo(np.int64).min)
        return Column("date", np.asarray(filled.to_numpy(zero_copy_only=False), np.int64))
    if not is_plain(kind):
        raise InvalidInputError(f"column {name!r} of {where} is of type {kind}; expected numbers, dates or text")
    wanted: ColumnKind = "text" if types.is_string(kind) or types.is_large_string(kind) else "float"
    if types.is_boolean(kind) or types.is_integer(kind):
        wanted = "bool" if types.is_boolean(kind) else "int"
    return parse_column(name, np.array([*values.to_pylist(), None], dtype=object)[:-1], wanted)


def is_plain(kind: pyarrow.DataType) -> bool:
    """Whether a column of arrow can be one of a store."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_large_string,
        types.is_timestamp, types.is_date,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def parquet_file(path: Path) -> pyarrow.parquet.ParquetFile:
    """Opened so that a page of each column is in memory at a time: by default arrow reads row groups ahead and keeps
    every column of a row group, which may be all of the file."""
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BYTES)


def parquet_values(path: Path, name: str) -> pyarrow.ChunkedArray:
    """All values of one column."""
    with parquet_file(path) as file:
        return file.read([name]).column(0)


def parquet_column(path: Path, name: str) -> Column:
    return column_of_arrow(name, parquet_values(path, name), str(path))


def column_of_cells(name: str, cells: Iterable[str | None], wanted: ColumnKind | None = None) -> Column:
    """Text of a csv as what all of it looks like: whole numbers, numbers, true or false, dates; else text.

    wanted: what the column is in the store; text there takes anything.
    """
    listed = [None if cell is None or not cell.strip() else cell for cell in cells]
    present = [cell.strip() for cell in listed if cell is not None]
    if wanted == "text" or not present:
        return parse_column(name, [*listed], wanted or "text")
    for pattern, read in _READERS.items():
        if all(pattern.fullmatch(cell) for cell in present):
            try:
                values = [None if cell is None else read(cell.strip()) for cell in listed]
            except ValueError:  # 2024-02-31 looks like a date
                break
            return parse_column(name, values, wanted)
    return parse_column(name, listed)


def read_columns(
    path: Path, names: Sequence[str], ids: Sequence[str] | None, kinds: Mapping[str, ColumnKind]
) -> dict[str, Column]:
    """Columns in a .csv or .parquet of their own, a row each; by default all of them but for numberings and ids.

    An `id` column must name the rows in their order.
    """
    if not path.exists():
        raise InvalidInputError(f"no such columns file: {path}")
    if path.suffix not in (".csv", ".parquet"):
        raise InvalidInputError(f"{path} has ending {path.suffix!r}; expected columns in a .csv or .parquet")
    columns = _read_csv(path, kinds) if path.suffix == ".csv" else _read_parquet(path)
    listed = columns.pop("id", None)
    pairs = zip([] if listed is None else listed.values().tolist(), ids or (), strict=False)
    for row, (there, here) in enumerate(pairs):
        if str(there) != here:
            raise InvalidInputError(f"row {row} has id {here!r}, but {str(there)!r} in {path}; sort it as the rows are")
    if missing := [name for name in names if name not in columns]:
        raise InvalidInputError(f"{path} has no column {missing[0]!r}; it has: {', '.join(columns) or 'none'}")
    return {name: columns[name] for name in names} if names else columns


def read_cells(path: Path, most: int | None = None) -> tuple[list[list[str]], str]:
    """The cells of the lines of a csv, or of so many, that are not blank; and what stands between cells."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            delimiter = max(",;\t", key=file.readline(_LONGEST_LINE).count)
            file.seek(0)
            lines = iter(partial(file.readline, _LONGEST_LINE), "")
            return list(islice(filter(None, csv.reader(lines, delimiter=delimiter)), most)), delimiter
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise InvalidInputError(f"{path} is not a csv in UTF-8: {reason_of(error)}") from None


def _read_csv(path: Path, kinds: Mapping[str, ColumnKind]) -> dict[str, Column]:
    rows, _ = read_cells(path)
    if not rows:
        raise InvalidInputError(f"{path} is empty; expected a header of column names and a row per line")
    header, *body = rows
    for number, cells in enumerate(body, 2):
        if len(cells) != len(header):
            raise InvalidInputError(f"row {number} of {path} has {len(cells)} cells, its header {len(header)}")
    wanted = {place: name for place, name in enumerate(header) if name.strip().lower() not in NUMBERING}
    return {
        name: column_of_cells(name, [cells[place] for cells in body], "text" if name == "id" else kinds.get(name))
        for place, name in wanted.items()
    }


def _read_parquet(path: Path) -> dict[str, Column]:
    import pyarrow

    try:
        with parquet_file(path) as file:
            table = file.read()
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInputError(f"{path} is not a readable parquet file: {reason_of(error)}") from None
    names = [name for name in table.column_names if name.strip().lower() not in NUMBERING]
    return {name: column_of_arrow(name, table.column(name), str(path)) for name in names}

"""Tables of csv and parquet: columns that are kept beside rows, and files with a column per feature."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError, reason_of
from actstore.layout.columns import Column
from actstore.spec import ColumnKind
from actstore.tables.row_source import ArrayFile, batched_rows
from actstore.writing.row_checks import parse_column

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet


NUMBERING = ("", "row", "index", "unnamed: 0", "__index_level_0__")  # of rows, as this tool and pandas write it
_READ_BYTES = 1 << 16  # of each column of a parquet file at a time: a wide table has thousands of them
_LONGEST_LINE = 1 << 24  # of a csv: a file that is none may have no lines
# What all cells of a column look like -> how each is read. float() alone takes more: 007, 12_34 and digits of other
# scripts are texts.
_READERS: dict[re.Pattern[str], Callable[[str], Any]] = {
    re.compile(r"true|false", re.IGNORECASE): lambda cell: cell.lower() == "true",
    re.compile(r"[+-]?(0|[1-9]\d*)", re.ASCII): int,
    re.compile(r"[+-]?(((0|[1-9]\d*)(\.\d*)?|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)", re.ASCII | re.IGNORECASE): float,
    re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?", re.ASCII): datetime.fromisoformat,
}


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


NAMES = ("class", "class_name", "category")  # labels that are names, whatever they look like
LABELS = ("label", "labels", "target", "y", *NAMES)
IDS = ("id", "ids", "path", "filename", "file", "image", "image_id", "name")
_BATCH_ROWS = 1 << 16  # of a column that is read alone
Batches = Callable[[Sequence[str], int], Iterator["pyarrow.RecordBatch"]]  # names of columns, rows at a time


def wide_parquet(path: Path, schema: pyarrow.Schema, count: int, kept: Sequence[str] = ()) -> ArrayFile:
    """kept: columns that were asked for, which are no features."""
    import pyarrow.types

    is_number = (pyarrow.types.is_floating, pyarrow.types.is_integer)
    numeric = [field.name for field in schema if any(test(field.type) for test in is_number)]
    features, known = _sort_columns(schema.names, numeric, str(path), kept)

    def batches(names: Sequence[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        with parquet_file(path) as file:
            for batch in file.iter_batches(rows, columns=list(names)):
                yield batch.select(list(names))

    dtype = np.result_type(*(np.dtype(schema.field(name).type.to_pandas_dtype()) for name in features))
    columns = {name: partial(parquet_column, path, name) for name in kept}
    return _wide_file(features, known, count, dtype, batches, columns)


def wide_csv(path: Path, kept: Sequence[str], kinds: Mapping[str, ColumnKind]) -> ArrayFile:
    """A csv in UTF-8 with a header; or without one, where its first line is all numbers: features alone.

    kinds: what its columns are in the store.
    """
    lines, delimiter = read_cells(path, 2)
    if not lines:
        raise InvalidInputError(f"{path} is empty; expected a header and a row per line")
    has_header = not all(_is_number(cell) for cell in lines[0])
    first = lines[1] if has_header and len(lines) > 1 else lines[0]
    if len(first) != len(lines[0]):
        raise InvalidInputError(f"{path} has {len(lines[0])} columns in its header, {len(first)} in its first row")
    names = lines[0] if has_header else [f"f{place}" for place in range(len(lines[0]))]
    numeric = [name for name, cell in zip(names, first, strict=True) if _is_number(cell)]
    features, known = _sort_columns(names, numeric, str(path), kept)
    text = {*known.values(), *kept}

    def batches(wanted: Sequence[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from pyarrow import csv as arrow_csv

        types = {name: pyarrow.string() if name in text else pyarrow.float64() for name in wanted}
        try:
            with arrow_csv.open_csv(
                path,
                arrow_csv.ReadOptions(column_names=names, skip_rows=int(has_header), block_size=4 << 20),
                arrow_csv.ParseOptions(delimiter=delimiter),
                arrow_csv.ConvertOptions(column_types=types, include_columns=list(wanted), strings_can_be_null=True),
            ) as reader:
                yield from reader
        except pyarrow.ArrowInvalid as error:
            raise InvalidInputError(f"{path} cannot be read as csv: {' '.join(str(error).split())}") from None

    def column(name: str) -> Column:
        return column_of_cells(name, _column_values(batches, name), kinds.get(name))

    count = sum(len(batch) for batch in batches([next(iter(known.values()), features[0])], _BATCH_ROWS))
    columns = {name: partial(column, name) for name in kept}
    return _wide_file(features, known, count, np.dtype(np.float64), batches, columns)


def _wide_file(
    features: Sequence[str],
    known: Mapping[str, str],
    count: int,
    dtype: np.dtype[Any],
    batches: Batches,
    columns: Mapping[str, Callable[[], Column]],
) -> ArrayFile:
    """known: the column of "labels" and of "ids", where there is one."""

    def block(batch: pyarrow.RecordBatch) -> NDArray[Any]:
        rows = np.empty((len(batch), len(features)), dtype)
        for place, values in enumerate(batch.columns):  # an empty cell is NaN, which the writer refuses by its row
            rows[:, place] = values.to_numpy(zero_copy_only=False)
        return rows

    def values(name: str) -> NDArray[Any]:
        cells = _column_values(batches, known[name])
        return _label_values(cells, known[name]) if name == "labels" else np.array(cells, dtype=object)

    rows = batched_rows((count, len(features)), dtype, partial(batches, features), block)
    shapes = {"activations": rows.shape, **dict.fromkeys(known, (count,))}
    return ArrayFile(shapes, lambda _: rows, values, columns)


def _column_values(batches: Batches, name: str) -> list[Any]:
    return [value for batch in batches([name], _BATCH_ROWS) for value in batch.column(0).to_pylist()]


def _sort_columns(
    names: Sequence[str], numeric: Iterable[str], where: str, kept: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """The features, and which columns are "labels" and "ids" by their names.

    Features are all others but numberings and what is kept; they must be numbers.
    """
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise InvalidInputError(f"column {twice!r} is in {where} twice; rename one of them")
    if unknown := [name for name in kept if name not in names]:
        raise InvalidInputError(f"{where} has no column {unknown[0]!r}; it has: {', '.join(names)}")
    known: dict[str, str] = {}
    for what, spellings in (("labels", LABELS), ("ids", IDS)):
        matching = [name for spelling in spellings for name in names if name.strip().lower() == spelling]
        if matching:
            known[what] = matching[0]
    others = {*known.values(), *kept}
    features = [name for name in names if name not in others and name.strip().lower() not in NUMBERING]
    text = [name for name in features if name not in set(numeric)]
    if text:
        raise InvalidInputError(
            f"column {text[0]!r} of {where} is not numbers; expected features, labels ({', '.join(LABELS)}) or ids "
            f"({', '.join(IDS)}); keep it with --column {text[0]}, or remove it"
        )
    if not features:
        raise InvalidInputError(f"{where} has no column of numbers, only {', '.join(names) or 'none at all'}")
    return features, known


def _label_values(values: Iterable[Any], column: str) -> NDArray[Any]:
    """Labels of a column: numbers where all are, unless the column is one of names; an empty one is none."""
    listed = [None if value is None or str(value).strip() == "" else value for value in values]
    texts = [str(value).strip() for value in listed if value is not None]
    is_whole = all(text.removeprefix("-").removesuffix(".0").isdecimal() for text in texts)
    if is_whole and column.strip().lower() not in NAMES:
        return np.array([-1 if value is None else int(float(str(value))) for value in listed], np.int64)
    return np.array([None if value is None else str(value) for value in listed], dtype=object)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

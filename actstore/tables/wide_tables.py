"""Tables with a column per feature: csv, and parquet without a column of lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.layout.columns import Column
from actstore.spec import ColumnKind
from actstore.tables.column_files import NUMBERING, column_of_cells, parquet_column, parquet_file, read_cells
from actstore.tables.row_source import ArrayFile, BatchedRows

if TYPE_CHECKING:
    import pyarrow

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

    rows = BatchedRows((count, len(features)), dtype, partial(batches, features), block)
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

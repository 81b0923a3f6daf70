"""Tables with a column per feature: csv, and parquet without a column of lists."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.layout.columns import Column
from actstore.spec import ColumnKind
from actstore.tables.column_files import NUMBERING, column_of_cells, parquet_column
from actstore.tables.row_source import block_rows

if TYPE_CHECKING:
    import pyarrow

NAMES = ("class", "class_name", "category")  # labels that are names, whatever they look like
LABELS = ("label", "labels", "target", "y", *NAMES)
IDS = ("id", "ids", "path", "filename", "file", "image", "image_id", "name")


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are features, which are labels and ids, and which are kept as columns."""

    features: tuple[str, ...]
    label: str | None
    id: str | None
    kept: tuple[str, ...] = ()


def sort_columns(names: Sequence[str], numeric: Iterable[str], where: str, kept: Sequence[str] = ()) -> Columns:
    """Labels and ids by their names, numberings left out; everything else must be numbers: the features.

    kept: columns that were asked for, which are no features.
    """
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise InvalidInputError(f"column {twice!r} is in {where} twice; rename one of them")
    label, identity = (
        next((name for wanted in known for name in names if name.strip().lower() == wanted), None)
        for known in (LABELS, IDS)
    )
    if unknown := [name for name in kept if name not in names]:
        raise InvalidInputError(f"{where} has no column {unknown[0]!r}; it has: {', '.join(names)}")
    passed = {label, identity, *kept}
    others = [name for name in names if name not in passed and name.strip().lower() not in NUMBERING]
    text = [name for name in others if name not in set(numeric)]
    if text:
        raise InvalidInputError(
            f"column {text[0]!r} of {where} is not numbers; expected features, labels ({', '.join(LABELS)}) or ids "
            f"({', '.join(IDS)}); keep it with --column {text[0]}, or remove it"
        )
    if not others:
        raise InvalidInputError(f"{where} has no column of numbers, only {', '.join(names) or 'none at all'}")
    return Columns(tuple(others), label, identity, tuple(kept))


def label_values(values: Iterable[Any], column: str) -> NDArray[Any]:
    """Labels of a column: numbers where all are, unless the column is one of names; an empty one is none."""
    listed = [None if value is None or str(value).strip() == "" else value for value in values]
    given = [str(value).strip() for value in listed if value is not None]
    if column.strip().lower() not in NAMES and all(_is_whole(text) for text in given):
        return np.array([-1 if value is None else int(float(str(value))) for value in listed], np.int64)
    return np.array([None if value is None else str(value) for value in listed], dtype=object)


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").removesuffix(".0").isdecimal()


class WideRows:
    """The features of a table, read batch by batch."""

    def __init__(self, table: WideTable) -> None:
        self._table = table
        self.shape = (table.count, len(table.columns.features))
        self.dtype = table.dtype

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        position = 0
        for batch in self._table.batches(self._table.columns.features, block_rows(self.shape[1], self.dtype)):
            first, last = max(start, position) - position, min(stop, position + len(batch)) - position
            if first < last:
                values = np.empty((last - first, self.shape[1]), self.dtype)
                for column in range(self.shape[1]):  # an empty cell is NaN, which the writer refuses by its row
                    values[:, column] = batch.column(column)[first:last].to_numpy(zero_copy_only=False)
                yield values
            position += len(batch)
            if position >= stop:
                return


class WideTable:
    """What csv and parquet have in common."""

    path: Path
    columns: Columns
    count: int
    dtype: np.dtype[Any]

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        raise NotImplementedError

    def column(self, name: str) -> Column:
        """The values of a column that is kept."""
        raise NotImplementedError

    def shapes(self) -> dict[str, tuple[int, ...]]:
        columns = {"labels": self.columns.label, "ids": self.columns.id}
        found = {name: (self.count,) for name, column in columns.items() if column is not None}
        return {"activations": (self.count, len(self.columns.features)), **found}

    def values(self, name: str) -> NDArray[Any]:
        column = self.columns.label if name == "labels" else self.columns.id
        assert column is not None
        found = [value for batch in self.batches([column], 1 << 16) for value in batch.column(0).to_pylist()]
        return label_values(found, column) if name == "labels" else np.array(found, dtype=object)


class WideParquet(WideTable):
    def __init__(self, path: Path, schema: pyarrow.Schema, count: int, kept: Sequence[str] = ()) -> None:
        import pyarrow.types

        numeric = [
            field.name
            for field in schema
            if pyarrow.types.is_floating(field.type) or pyarrow.types.is_integer(field.type)
        ]
        self.path, self.count = path, count
        self.columns = sort_columns(schema.names, numeric, str(path), kept)
        kinds = [np.dtype(schema.field(name).type.to_pandas_dtype()) for name in self.columns.features]
        self.dtype = np.result_type(*kinds)

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(rows, columns=list(names)):
                yield batch.select(list(names))

    def column(self, name: str) -> Column:
        return parquet_column(self.path, name)


class WideCsv(WideTable):
    """A csv in UTF-8 with a header; or without one, where its first line is all numbers: features alone."""

    def __init__(self, path: Path, kept: Sequence[str] = (), kinds: Mapping[str, ColumnKind] | None = None) -> None:
        self._kinds = kinds or {}
        self.path, self.dtype = path, np.dtype(np.float64)
        lines, self._delimiter = _first_lines(path)
        if not lines:
            raise InvalidInputError(f"{path} is empty; expected a header and a row per line")
        self._has_header = not all(_is_number(cell) for cell in lines[0])
        first = lines[1] if self._has_header and len(lines) > 1 else lines[0]
        if len(first) != len(lines[0]):
            raise InvalidInputError(f"{path} has {len(lines[0])} columns in its header, {len(first)} in its first row")
        self._names = lines[0] if self._has_header else [f"f{place}" for place in range(len(lines[0]))]
        numeric = [name for name, cell in zip(self._names, first, strict=True) if _is_number(cell)]
        self.columns = sort_columns(self._names, numeric, str(path), kept)

    @cached_property
    def count(self) -> int:  # type: ignore[override]
        smallest = self.columns.label or self.columns.id or self.columns.features[0]
        return sum(len(batch) for batch in self.batches([smallest], 1 << 16))

    def batches(self, names: Sequence[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        from pyarrow import csv as arrow_csv

        text = {self.columns.label, self.columns.id, *self.columns.kept}
        kinds = {name: pyarrow.string() if name in text else pyarrow.float64() for name in names}
        try:
            with arrow_csv.open_csv(
                self.path,
                arrow_csv.ReadOptions(column_names=self._names, skip_rows=int(self._has_header), block_size=4 << 20),
                arrow_csv.ParseOptions(delimiter=self._delimiter),
                arrow_csv.ConvertOptions(column_types=kinds, include_columns=list(names), strings_can_be_null=True),
            ) as reader:
                yield from reader
        except pyarrow.ArrowInvalid as error:
            raise InvalidInputError(f"{self.path} cannot be read as csv: {' '.join(str(error).split())}") from None

    def column(self, name: str) -> Column:
        cells = [cell for batch in self.batches([name], 1 << 16) for cell in batch.column(0).to_pylist()]
        return column_of_cells(name, cells, self._kinds.get(name))


def _first_lines(path: Path) -> tuple[list[list[str]], str]:
    """The cells of the first two lines, and what stands between cells."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline(1 << 24)
            delimiter = max(",;\t", key=head.count)
            return [
                cells for cells in csv.reader([head, file.readline(1 << 24)], delimiter=delimiter) if cells
            ], delimiter
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"{path} is not a csv in UTF-8: {error}") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

"""Columns: a named value of every row, and the plain arrays that they are kept in.

Numbers, truth values and dates are one array each; text is two, its bytes and where each row's begin. Every type has
a value that stands for none: NaN, the smallest integer, -1 of a truth value, the empty text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self, get_args

import numpy as np
from numpy.typing import NDArray

from actstore.errors import MissingColumnError
from actstore.layout.metadata import DIMENSIONS, FLAT_ARRAYS, RawLayout, read_attributes, read_flat, require_crc
from actstore.layout.texts import Texts
from actstore.spec import ColumnKind, ColumnSpec, Json, SplitSpec
from actstore.storage.atomic_file import extend_crc32c
from actstore.storage.place import Place

SMALLEST = int(np.iinfo(np.int64).min)  # numpy's NaT, too
NONE: dict[ColumnKind, Any] = {"bool": -1, "int": SMALLEST, "float": float("nan"), "date": SMALLEST}
KIND = "column"  # the attribute of an array that says which type of column it holds
DTYPES: dict[ColumnKind, str] = {"bool": "<i1", "int": "<i8", "float": "<f8", "date": "<i8"}
_MOST_DISTINCT = 10_000  # texts that are counted
_ROWS, _BYTES = 16_384, 1 << 18  # of a chunk: 128 and 256 KiB
# as netCDF and so xarray spell it, whose readers see dates, and missing values as missing
_DATES: dict[str, Json] = {"units": "microseconds since 1970-01-01", "calendar": "proleptic_gregorian"}

Arrays = dict[str, tuple[RawLayout, int]]  # by name, with their committed length


@dataclass(frozen=True)
class Column:
    """Values of a column as they are stored: (n,) of i1, i8 or f8, or texts."""

    kind: ColumnKind
    stored: NDArray[Any] | Texts

    @classmethod
    def nothing(cls, kind: ColumnKind, count: int) -> Self:
        """`count` rows without a value."""
        return cls(kind, Texts.empty(count) if kind == "text" else np.full(count, NONE[kind], DTYPES[kind]))

    @classmethod
    def joined(cls, kind: ColumnKind, parts: Sequence[Column]) -> Self:
        texts = [part.stored for part in parts if isinstance(part.stored, Texts)]
        numbers = [part.stored for part in parts if not isinstance(part.stored, Texts)]
        if kind == "text":
            return cls(kind, Texts.joined(texts))
        return cls(kind, np.concatenate([np.empty(0, DTYPES[kind]), *numbers]))

    def __len__(self) -> int:
        return len(self.stored)

    def part(self, start: int, stop: int) -> Column:
        if isinstance(self.stored, Texts):
            return replace(self, stored=self.stored.part(start, stop))
        return replace(self, stored=self.stored[start:stop])

    def take(self, rows: NDArray[np.int64]) -> Column:
        return replace(self, stored=self.stored.take(rows) if isinstance(self.stored, Texts) else self.stored[rows])

    def missing(self) -> NDArray[np.bool_]:
        """(n,) where there is no value."""
        if isinstance(self.stored, Texts):
            return self.stored.equal("")
        mask: NDArray[np.bool_] = np.isnan(self.stored) if self.kind == "float" else self.stored == NONE[self.kind]
        return mask

    def values(self) -> NDArray[Any]:
        """(n,) as numpy has them: bool, int64, float64, datetime64[us] or str objects.

        No value is NaN, NaT or ""; integers and truth values become float64 where some row has none.
        """
        if isinstance(self.stored, Texts):
            return np.array([*self.stored, None], dtype=object)[:-1]  # so that numpy makes no array of letters
        if self.kind == "date":
            return self.stored.astype(np.int64).view("M8[us]")
        if self.kind == "float":
            return self.stored.astype(np.float64, copy=False)
        missing = self.missing()
        if missing.any():
            return np.where(missing, np.nan, self.stored)
        return self.stored.astype(bool if self.kind == "bool" else np.int64, copy=False)

    def extend_crc(self, crc: int) -> int:
        """The crc32c of what `crc` covers followed by these values."""
        if isinstance(self.stored, Texts):
            return self.stored.extend_crc(crc, 0)
        return extend_crc32c(crc, self.stored)


def describe_column(before: ColumnSpec, part: Column) -> ColumnSpec:
    """The checksum and size after some more rows."""
    size = len(part.stored.data) if isinstance(part.stored, Texts) else 0
    return replace(before, crc=part.extend_crc(before.crc), text_bytes=before.text_bytes + size)


def arrays_of(column: ColumnSpec, rows: int) -> Arrays:
    """The arrays of a column of so many rows; no two columns share one, as names of columns have no dots."""
    name, kind = column.name, column.kind
    if kind == "text":
        return {
            f"{name}.offsets": (RawLayout("i8", (_ROWS,), (f"{name}.bound",), 0, {KIND: kind}), rows + 1),
            f"{name}.bytes": (RawLayout("u1", (_BYTES,), (f"{name}.byte",), 0, {KIND: kind}), column.text_bytes),
        }
    attributes: dict[str, Json] = {KIND: kind, **(_DATES if kind == "date" else {})}
    if kind != "float":
        attributes["_FillValue"] = NONE[kind]
    return {name: (RawLayout(DTYPES[kind][1:], (_ROWS,), ("row",), NONE[kind], attributes), rows)}


def flat_arrays(split: SplitSpec) -> Arrays:
    """Every one-dimensional array that a split has: labels, ids and columns."""
    offsets = split.rows + 1 if split.has_ids else 0
    lengths = {"labels": split.rows, "path_offsets": offsets, "path_bytes": split.id_bytes}
    arrays = {name: (layout, lengths[name]) for name, layout in FLAT_ARRAYS.items()}
    for column in split.columns:
        arrays |= arrays_of(column, split.rows)
    return arrays


def read_column(split: Place, column: ColumnSpec, rows: int) -> Column:
    """The values of the first `rows` rows."""
    arrays = {name: read_flat(split / name, stop, layout) for name, (layout, stop) in arrays_of(column, rows).items()}
    if column.kind == "text":
        return Column(column.kind, Texts(arrays[f"{column.name}.bytes"], arrays[f"{column.name}.offsets"]))
    return Column(column.kind, arrays[column.name])


def read_sound_column(split: Place, column: ColumnSpec, rows: int) -> Column:
    """The same, refused where the values are not those committed."""
    values = read_column(split, column, rows)
    where = split / [*arrays_of(column, rows)][-1]
    require_crc(where, f"the values of column {column.name!r}", column.crc, lambda: values.extend_crc(0))
    return values


class Columns(Mapping[str, NDArray[Any]]):
    """The columns of a split by name, read when they are asked for; see `Column.values` for their types."""

    def __init__(
        self, path: Place, split: SplitSpec, reading: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """reading: entered around every read, to say what an error means."""
        self._path, self._rows, self._reading = path, split.rows, reading
        self.specs = {column.name: column for column in split.columns}
        self._read: dict[str, Column] = {}

    def stored(self, name: str) -> Column:
        """As it is stored, missing values included."""
        if name not in self.specs:
            have = ", ".join(self.specs) or "no columns"
            raise MissingColumnError(f"split {self._path.name!r} has no column {name!r}; it has: {have}")
        if name not in self._read:
            with self._reading():
                self._read[name] = read_sound_column(self._path, self.specs[name], self._rows)
        return self._read[name]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.stored(name).values()

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def __contains__(self, name: object) -> bool:
        return name in self.specs

    def __repr__(self) -> str:
        return f"<Columns {', '.join(f'{spec.name} ({spec.kind})' for spec in self.specs.values())}>"


def column_arrays(split: Place) -> dict[str, ColumnKind]:
    """Arrays of columns that lie in a split, committed or not, by name: an attribute says what they are."""
    kinds: dict[str, ColumnKind] = {}
    for entry in split.children():
        if entry.name not in DIMENSIONS and (entry / "zarr.json").exists():
            kind = read_attributes(entry).get(KIND)
            if kind in get_args(ColumnKind):
                kinds[entry.name] = kind  # type: ignore[assignment]
    return kinds


def uncommitted_columns(split: Place, committed: SplitSpec) -> set[str]:
    """Arrays that an interrupted build or append has left."""
    return set(column_arrays(split)) - set(flat_arrays(committed))


def summary(column: Column) -> dict[str, Json]:
    """Type, how many have no value, and the range of numbers and dates or the number of distinct texts."""
    missing = column.missing()
    facts: dict[str, Json] = {"type": column.kind, "missing": int(missing.sum())}
    if isinstance(column.stored, Texts):
        distinct: set[str] = set()
        for text in column.stored:
            distinct.add(text)
            if len(distinct) > _MOST_DISTINCT:
                break
        is_more = len(distinct) > _MOST_DISTINCT
        distinct.discard("")
        return facts | {"distinct": min(len(distinct), _MOST_DISTINCT), "distinct_is_more": is_more}
    present = column.take(np.flatnonzero(~missing)).values()
    if not len(present):
        return facts | {"smallest": None, "largest": None}
    ends = present.min(), present.max()
    plain = [str(end).removesuffix("T00:00:00.000000") if column.kind == "date" else end.item() for end in ends]
    return facts | {"smallest": plain[0], "largest": plain[1]}

"""What labels, ids and values of columns must be before a store takes them, and why a row is refused."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.errors import InvalidInputError
from actstore.layout.columns import DTYPES, NONE, SMALLEST, Column, Texts
from actstore.spec import ColumnKind, ColumnSpec

FP16_MAX, FP32_MAX = 65504.0, float(np.finfo(np.float32).max)


def parse_labels(labels: ArrayLike | None, count: int, label_of: Mapping[str, int], position: int) -> NDArray[np.int32]:
    """(count,) labels from numbers or class names; none at all means unlabelled."""
    if labels is None:
        return np.full(count, -1, np.int32)
    plain = plain_labels(np.asarray(labels))
    if plain.shape != (count,):
        raise InvalidInputError(f"expected {count} labels, one per row, got shape {plain.shape}")
    if plain.dtype.kind in "UO":
        label_of = {**label_of, "": -1}
        unknown = [name for name in plain.tolist() if name not in label_of]
        if unknown:
            raise InvalidInputError(f"label {unknown[0]!r} is not a class of this store; add it with add_classes first")
        return np.array([label_of[name] for name in plain.tolist()], np.int32)
    if count and plain.dtype.kind not in "iu":
        raise InvalidInputError(f"labels must be whole numbers or class names, got type {plain.dtype}")
    outside = (plain < -1) | (plain >= len(label_of))
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise InvalidInputError(
            f"row {position + row} has label {plain[row]}; this store has {len(label_of)} classes, "
            f"so labels are below {len(label_of)}, or -1 for none"
        )
    return plain.astype(np.int32)


def plain_labels(labels: NDArray[Any]) -> NDArray[Any]:
    """Labels as numbers or text, whatever they came as: bytes, objects, or numbers in an object array."""
    if labels.dtype.kind == "O":
        listed = [-1 if label is None else label for label in labels.tolist()]  # no label in a table is unlabelled
        if all(isinstance(label, int | np.integer) for label in listed):
            return np.array(listed, np.int64)
        return np.array(["" if label == -1 else str(label) for label in listed], dtype=object)
    if labels.dtype.kind == "S":
        return np.char.decode(labels, "utf-8")
    return labels


def refused_row(row: NDArray[Any], where: str, dtype: str) -> InvalidInputError:
    """Why a row cannot be stored: not finite, or finite but beyond fp16."""
    wide = np.asarray(row, np.float64)
    if np.isfinite(wide).all():
        worst = wide[np.argmax(np.abs(wide))]
        if dtype == "f4":
            return InvalidInputError(f"{where} holds {worst:g}, beyond the {FP32_MAX:g} of fp32; scale the activations")
        return InvalidInputError(f"{where} holds {worst:g}, beyond fp16's {FP16_MAX:g}; use dtype f4")
    feature = int(np.flatnonzero(~np.isfinite(wide))[0])
    return InvalidInputError(f"{where} holds {wide[feature]} at feature {feature}; activations must be finite")


_EXPECTED = "expected numbers, truth values, dates or text"
_OF_NUMPY: dict[str, ColumnKind] = {
    "b": "bool", "i": "int", "u": "int", "f": "float", "M": "date", "U": "text", "S": "text",
}  # fmt: skip


def parse_columns(
    columns: Mapping[str, Any] | None, count: int, known: Mapping[str, ColumnKind], where: str
) -> dict[str, Column]:
    """Columns of `count` rows, as arrays, lists or stored values; known: the types that the split has so far."""
    parsed: dict[str, Column] = {}
    for name, values in (columns or {}).items():
        ColumnSpec(name, "int")  # says what is wrong with a name
        twin = next((other for other in (*known, *parsed) if other != name and other.lower() == name.lower()), None)
        if twin is not None:
            raise InvalidInputError(f"column {name!r} differs from {twin!r} in case alone; rename one of them")
        if not count and not len(values):
            continue  # no rows say nothing about a type
        column = parse_column(name, values, known.get(name))
        if len(column) != count:
            raise InvalidInputError(f"expected {count} values of column {name!r}, one per row, got {len(column)}")
        if known.get(name, column.kind) != column.kind:
            raise InvalidInputError(
                f"column {name!r} of {where} holds {known[name]} values, got {column.kind}; "
                "convert them, or give the column another name"
            )
        parsed[name] = column
    return parsed


def parse_column(name: str, values: Any, wanted: ColumnKind | None = None) -> Column:
    """Values of one column; whole numbers are taken for others, and rows of no value at all for any, where wanted."""
    if isinstance(values, Column):
        return _as_float(values) if (values.kind, wanted) == ("int", "float") else values
    array = _as_array(values)
    if array.ndim != 1:
        raise InvalidInputError(f"column {name!r} must have one value per row, got shape {array.shape}")
    if array.dtype.kind == "O":
        column = _of_objects(name, array.tolist(), wanted)
    elif array.dtype.kind in _OF_NUMPY:
        column = _of_array(name, array)
    else:
        raise InvalidInputError(f"column {name!r} is of type {array.dtype}; {_EXPECTED}")
    return _as_float(column) if (column.kind, wanted) == ("int", "float") else column


def _as_array(values: Any) -> NDArray[Any]:
    """Lists stay as they are: numpy would make texts of numbers beside texts."""
    if isinstance(values, np.ndarray) or hasattr(values, "__array__"):
        return np.asarray(values)
    listed = list(values)
    array = np.empty(len(listed), object)
    array[:] = listed
    return array


def _of_array(name: str, values: NDArray[Any]) -> Column:
    kind = _OF_NUMPY[values.dtype.kind]
    if kind == "text":
        texts = _decoded(name, values) if values.dtype.kind == "S" else values
        return Column(kind, Texts.of(texts.tolist(), f"column {name!r}"))
    if kind == "date":
        return Column(kind, values.astype("M8[us]").view(np.int64))
    if kind == "int" and len(values) and (int(values.max()) > -SMALLEST - 1 or int(values.min()) <= SMALLEST):
        raise _too_large(name)
    return Column(kind, values.astype(DTYPES[kind]))


def _decoded(name: str, values: NDArray[np.bytes_]) -> NDArray[np.str_]:
    try:
        return np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"column {name!r} holds {error.object!r}, expected text in UTF-8; decode it first, or save it as str"
        ) from None


def _of_objects(name: str, values: list[Any], wanted: ColumnKind | None) -> Column:
    present = [value for value in values if not _is_none(value)]
    if not present and wanted is not None:
        return Column.nothing(wanted, len(values))
    kind = _kind_of(name, present)
    if kind == "text":
        return Column(kind, Texts.of(["" if _is_none(value) else value for value in values], f"column {name!r}"))
    if kind == "date":
        return Column(kind, np.array([_microseconds(value) for value in values], np.int64))
    filled = [NONE[kind] if _is_none(value) else value for value in values]
    try:
        return Column(kind, np.array(filled, DTYPES[kind]))
    except OverflowError:
        raise _too_large(name) from None


def _too_large(name: str) -> InvalidInputError:
    return InvalidInputError(f"column {name!r} holds a whole number beyond 64 bits; give it as text or float")


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, float | np.datetime64) and value != value)


def _kind_of(name: str, present: list[Any]) -> ColumnKind:
    tests: tuple[tuple[ColumnKind, tuple[type, ...]], ...] = (
        ("bool", (bool, np.bool_)),
        ("text", (str,)),
        ("date", (date, np.datetime64)),
        ("int", (int, np.integer)),
        ("float", (int, float, np.integer, np.floating)),
    )
    if not present:
        raise InvalidInputError(f"column {name!r} has no value at all, so its type is not known; leave it out")
    for kind, types in tests:
        if all(isinstance(value, types) and (kind == "bool" or not isinstance(value, bool)) for value in present):
            return kind
    mixed = sorted({type(value).__name__ for value in present})
    raise InvalidInputError(f"column {name!r} holds values of type {', '.join(mixed)}; {_EXPECTED}, all of one type")


def _microseconds(value: Any) -> int:
    if _is_none(value):
        return SMALLEST
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return int(np.datetime64(value, "us").astype(np.int64))


def _as_float(column: Column) -> Column:
    assert not isinstance(column.stored, Texts)
    return Column("float", np.where(column.missing(), np.nan, column.stored).astype("<f8"))


_COLUMN = "column/"  # what the names of columns begin with in a file of facts: column/KIND/NAME


@dataclass(frozen=True)
class RowMetadata:
    """Labels (n,); ids (n,) where the split has them; columns by name, (n,) each."""

    labels: NDArray[np.int32]
    ids: Texts | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int) -> RowMetadata:
        ids = None if self.ids is None else self.ids.part(start, stop)
        return RowMetadata(
            self.labels[start:stop], ids, {name: one.part(start, stop) for name, one in self.columns.items()}
        )

    def column(self, name: str, kind: ColumnKind) -> Column:
        """Without a value where these rows came without the column."""
        return self.columns[name] if name in self.columns else Column.nothing(kind, len(self))


def join_facts(parts: Sequence[RowMetadata], kinds: Mapping[str, ColumnKind]) -> RowMetadata:
    """Of consecutive rows, with all the columns of `kinds`."""
    labels = np.concatenate([np.empty(0, np.int32), *(part.labels for part in parts)])
    known = [part.ids for part in parts if part.ids is not None]
    ids = Texts.joined(known) if known else None
    columns = {name: Column.joined(kind, [part.column(name, kind) for part in parts]) for name, kind in kinds.items()}
    return RowMetadata(labels, ids, columns)


def pack(facts: RowMetadata, **more: NDArray[Any]) -> memoryview:
    """The bytes of a file that holds them."""
    arrays: dict[str, NDArray[Any]] = {"labels": facts.labels, **more}
    if facts.ids is not None:
        arrays["lengths"], arrays["bytes"] = facts.ids.lengths.astype(np.int32), facts.ids.data
    for name, column in facts.columns.items():
        key = f"{_COLUMN}{column.kind}/{name}"
        if isinstance(column.stored, Texts):
            arrays[key], arrays[f"{key}/bytes"] = column.stored.offsets, column.stored.data
        else:
            arrays[key] = column.stored
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getbuffer()


def unpack(arrays: Mapping[str, NDArray[Any]]) -> RowMetadata:
    ids, columns = None, {}
    if "lengths" in arrays:
        ids = Texts(arrays["bytes"], np.concatenate([[0], np.cumsum(arrays["lengths"], dtype=np.int64)]))
    for key in arrays:
        if key.startswith(_COLUMN) and key.count("/") == 2:
            _, kind, name = key.split("/")
            stored = arrays[key] if kind != "text" else Texts(arrays[f"{key}/bytes"], arrays[key])
            columns[name] = Column(kind, stored)  # type: ignore[arg-type]
    return RowMetadata(arrays["labels"], ids, columns)

"""What every row has beside its activation: a label, an id, and columns, each a named value; and the plain arrays that
they are kept in.

Numbers, truth values and dates are one array each. Texts, ids among them, are two: one block of UTF-8 bytes and where
each row's begin, no object per text. Every type of a column has a value that stands for none: NaN, the smallest
integer, -1 of a truth value, the empty text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self, get_args

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, InvalidInputError, MissingColumnError
from actstore.layout.ledger import BLOSC, read_ledger
from actstore.layout.metadata import (
    ACTIVATIONS,
    DIMENSIONS,
    FLAT_ARRAYS,
    KIND,
    RawLayout,
    array_document,
    create_group,
    create_raw_array,
    raw_codecs,
    read_attributes,
    read_document,
    read_flat,
    remove_own,
    write_document,
)
from actstore.spec import KEY, ColumnKind, ColumnSpec, Json, SplitSpec, StoreSpec
from actstore.storage.atomic_file import extend_crc32c
from actstore.storage.place import Place

ID_END = ord("\n")
_BLOCK = 1 << 14  # texts that a checksum copies at a time
SMALLEST = int(np.iinfo(np.int64).min)  # numpy's NaT, too
NONE: dict[ColumnKind, Any] = {"bool": -1, "int": SMALLEST, "float": float("nan"), "date": SMALLEST}
DTYPES: dict[ColumnKind, str] = {"bool": "<i1", "int": "<i8", "float": "<f8", "date": "<i8"}
_ROWS, _BYTES = 16_384, 1 << 18  # of a chunk: 128 and 256 KiB
# as netCDF and so xarray spell it, whose readers see dates, and missing values as missing
_DATES: dict[str, Json] = {"units": "microseconds since 1970-01-01", "calendar": "proleptic_gregorian"}


@dataclass(frozen=True, eq=False)
class Texts(Sequence[str]):
    """Text i is `data[offsets[i]:offsets[i + 1]]`; offsets (n + 1,) begin at 0."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[str], what: str = "text") -> Self:
        encoded = [_encode(text, row, what) for row, text in enumerate(texts)]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(text) for text in encoded], out=offsets[1:])
        return cls(np.frombuffer(b"".join(encoded), np.uint8), offsets)

    @classmethod
    def empty(cls, count: int) -> Self:
        """`count` empty texts."""
        return cls(np.empty(0, np.uint8), np.zeros(count + 1, np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Self:
        lengths = np.concatenate([np.empty(0, np.int64), *(part.lengths for part in parts)])
        data = np.concatenate([np.empty(0, np.uint8), *(part.data for part in parts)])
        return cls(data, np.concatenate([[0], np.cumsum(lengths)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: Any) -> Any:
        """The text of a row, or the list of a slice's."""
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        place = range(len(self))[row]  # Python's own rules for negative and out-of-range
        return self.data[self.offsets[place] : self.offsets[place + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        data = self.data.tobytes()
        return (data[start:stop].decode() for start, stop in pairwise(self.offsets.tolist()))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(n,) in bytes."""
        return np.diff(self.offsets)

    def part(self, start: int, stop: int) -> Texts:
        offsets = self.offsets[start : stop + 1]
        return Texts(self.data[offsets[0] : offsets[-1]], offsets - offsets[0])

    def take(self, rows: NDArray[np.int64]) -> Texts:
        lengths = self.lengths[rows]
        ends = np.cumsum(lengths)
        # byte j of the outcome comes from as far behind the start of its text as it lies behind the start there
        source = np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.offsets[rows] - (ends - lengths), lengths)
        return Texts(self.data[source], np.concatenate([[0], ends]))

    def equal(self, text: str) -> NDArray[np.bool_]:
        """(n,) which are this text; only those of its length are looked at."""
        wanted = np.frombuffer(text.encode(), np.uint8)
        mask: NDArray[np.bool_] = self.lengths == len(wanted)
        if len(wanted):
            rows = np.flatnonzero(mask)
            letters = self.data[self.offsets[rows][:, None] + np.arange(len(wanted))]  # (candidates, bytes)
            mask[rows] = (letters == wanted).all(1)
        return mask


def extend_crc(crc: int, values: NDArray[Any] | Texts, end: int = 0) -> int:
    """The crc32c of what `crc` covers followed by these values, of texts with the byte `end` after each.

    ValueError where offsets are none.
    """
    if not isinstance(values, Texts):
        return extend_crc32c(crc, values)
    if values.offsets[0] != 0 or values.offsets[-1] != len(values.data) or (values.lengths < 0).any():
        raise ValueError("the offsets do not ascend from 0 to the number of bytes")
    for start in range(0, len(values), _BLOCK):
        part = values.part(start, min(start + _BLOCK, len(values)))
        crc = extend_crc32c(crc, np.insert(part.data, part.offsets[1:], end))
    return crc


class RowNumbers(Sequence[str]):
    """The ids of a split that was given none: the row numbers, which need no memory."""

    def __init__(self, rows: int) -> None:
        self._rows = range(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        return list(map(str, self._rows[row])) if isinstance(row, slice) else str(self._rows[row])

    def __iter__(self) -> Iterator[str]:
        return map(str, self._rows)


def _encode(text: str, row: int, what: str) -> bytes:
    if not isinstance(text, str) or "\0" in text:
        raise InvalidInputError(f"{what} of row {row} must be text without zero bytes, got {text!r}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"{what} of row {row} is {text!r}: not valid Unicode text") from None


def encode_ids(ids: Iterable[str]) -> Texts:
    """Image ids; refuses what could break a listing or leave a folder when used as a path."""
    names = list(ids)
    for row, name in enumerate(names):
        if not isinstance(name, str):
            raise InvalidInputError(f"id {row} must be a string, got {name!r}")
        if not name or any(ord(character) < 32 or ord(character) == 127 for character in name):
            raise InvalidInputError(f"id {row} is {name!r}: empty ids, line breaks and control characters are refused")
        if ".." in name.replace("\\", "/").split("/"):
            raise InvalidInputError(f"id {row} is {name!r}: '..' is refused, it could point outside of a folder")
    return Texts.of(names, "id")


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


@dataclass(frozen=True)
class Fact:
    """Labels, ids or a column of a split. arrays: of texts first their offsets. end: the byte that follows each of them
    in the checksum."""

    what: str
    arrays: Arrays
    crc: int
    end: int = 0


def facts_of(split: SplitSpec) -> dict[str, Fact]:
    """By name, as they are committed; a split without ids has arrays for them all the same."""
    id_lengths = {"path_offsets": split.rows + 1 if split.has_ids else 0, "path_bytes": split.id_bytes}
    id_arrays = {name: (FLAT_ARRAYS[name], length) for name, length in id_lengths.items()}
    facts = {
        "labels": Fact("the labels", {"labels": (FLAT_ARRAYS["labels"], split.rows)}, split.labels_crc),
        # as lines: they hold no line break, so this tells them apart
        "ids": Fact("the ids", id_arrays, split.ids_crc, ID_END),
    }
    for column in split.columns:
        arrays = arrays_of(column, split.rows)
        facts[column.name] = Fact(f"the values of column {column.name!r}", arrays, column.crc)
    return facts


def flat_arrays(split: SplitSpec) -> Arrays:
    """Every one-dimensional array that a split has: labels, ids and columns."""
    return {name: array for fact in facts_of(split).values() for name, array in fact.arrays.items()}


def read_arrays(split: Place, arrays: Arrays) -> NDArray[Any] | Texts:
    """The values that they hold, as far as each is committed."""
    values, *data = [read_flat(split / name, stop, layout) for name, (layout, stop) in arrays.items()]
    if not data:
        return values
    return Texts(data[0], values) if len(values) else Texts.empty(0)


def read_fact(split: Place, fact: Fact) -> NDArray[Any] | Texts:
    """Refused where the values are not those committed: chunks that are sound each by itself may be of different
    moments, or of another store."""
    values, array = read_arrays(split, fact.arrays), split / [*fact.arrays][-1]
    mend = f"run `actstore verify {split.parent} --repair`, or copy the store again"
    try:
        found = extend_crc(0, values, fact.end)
    except ValueError as error:
        raise DamagedError(f"{fact.what} in {array} are damaged: {error}; {mend}") from error
    if found != fact.crc:
        raise DamagedError(
            f"{fact.what} are not those committed (the crc32c of {array} is {found:08x}, expected {fact.crc:08x}); "
            f"{mend}"
        )
    return values


class Columns(Mapping[str, NDArray[Any]]):
    """The columns of a split by name, read when they are asked for; see `Column.values` for their types."""

    def __init__(
        self, path: Place, split: SplitSpec, reading: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """reading: entered around every read, to say what an error means."""
        self._path, self._facts, self._reading = path, facts_of(split), reading
        self.specs = {column.name: column for column in split.columns}
        self._read: dict[str, Column] = {}

    def stored(self, name: str) -> Column:
        """As it is stored, missing values included."""
        if name not in self.specs:
            have = ", ".join(self.specs) or "no columns"
            raise MissingColumnError(f"split {self._path.name!r} has no column {name!r}; it has: {have}")
        if name not in self._read:
            with self._reading():
                self._read[name] = Column(self.specs[name].kind, read_fact(self._path, self._facts[name]))
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


def create_split(path: Place, spec: StoreSpec, split: SplitSpec) -> None:
    """An empty split: its arrays with no rows yet. The group comes last, so a split exists whole or not."""
    if read_ledger(path / ACTIVATIONS)[0]:
        raise DamagedError(f"{path} holds rows but has lost its zarr.json; restore that file from a backup")
    if not (path / ACTIVATIONS / "zarr.json").exists():
        write_document(path / ACTIVATIONS, expected_document(ACTIVATIONS, spec, split))
    for name, layout in FLAT_ARRAYS.items():
        remove_own(path / name, "array")
        create_raw_array(path / name, layout, (0,))
    create_group(path, {KEY: split.to_json()})


def expected_document(name: str, spec: StoreSpec, split: SplitSpec) -> dict[str, Json]:
    """The metadata that an array of this split must have: it follows from the store's own."""
    if name != ACTIVATIONS:
        layout, length = flat_arrays(split)[name]
        return array_document(layout, (length,))
    codecs = raw_codecs(spec.dtype)
    if spec.codec == "blosc":
        settings = {"typesize": int(spec.dtype[1]), **BLOSC, "shuffle": "bitshuffle"}
        codecs.insert(1, {"name": "blosc", "configuration": settings})
    if spec.shard_inner_rows:
        inner = {"chunk_shape": [spec.shard_inner_rows, spec.dim], "codecs": codecs}
        index = {"index_codecs": raw_codecs("u8"), "index_location": "end"}
        codecs = [{"name": "sharding_indexed", "configuration": {**inner, **index}}]
    # a reader that ignores a lost chunk sees NaN, never plausible zeros
    layout = RawLayout(spec.dtype, (spec.chunk_rows, spec.dim), DIMENSIONS[ACTIVATIONS], float("nan"))
    return array_document(layout, (split.rows, spec.dim), codecs)


def metadata_difference(path: Place, expected: Mapping[str, Json], growing: bool) -> str | None:
    """What an array's zarr.json says otherwise than expected. growing: it may be longer already."""
    document = read_document(path)
    if {**document, "attributes": {}} == {**expected, "attributes": {}}:
        return None  # word by word; else they may still mean the same
    from zarr.core.metadata import ArrayV3Metadata  # zarr takes a second to import

    try:
        actual, wanted = (ArrayV3Metadata.from_dict(dict(metadata)).to_dict() for metadata in (document, expected))
    except (KeyError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
        return f"{path / 'zarr.json'} cannot be read: {type(error).__name__} {error}".splitlines()[0]
    if growing and actual["shape"][0] > wanted["shape"][0]:  # type: ignore[index,operator]
        actual["shape"] = wanted["shape"]
    for key, value in wanted.items():
        if key != "attributes" and json.dumps(actual.get(key), default=str) != json.dumps(value, default=str):
            return f"{path / 'zarr.json'} says {key} {actual.get(key)}, expected {value}"
    return None

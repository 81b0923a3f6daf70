"""Rows of a split into files of other tools, block by block; a file appears whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.layout.columns import Column, Texts
from actstore.progress import Progress
from actstore.reading.adapters import class_names, row_ids
from actstore.reading.rows import parse_rows
from actstore.split import Split
from actstore.storage.atomic_file import as_bytes, atomic_stream, npy_bytes, write_atomic

if TYPE_CHECKING:
    import pyarrow

# safetensors' names of types
_TENSORS = {"f2": "F16", "f4": "F32", "f8": "F64", "i1": "I8", "i4": "I32", "i8": "I64", "u1": "U8"}
_BLOCK_ROWS = 4096


Numbers = NDArray[np.int64]
Blocks = Iterator[tuple[Numbers, NDArray[Any]]]  # row numbers (n,), activations (n, dim)


def _blocks(split: Split, rows: Numbers, progress: Progress | None) -> Blocks:
    is_range = len(rows) > 0 and bool((np.diff(rows) == 1).all())
    for numbers, values in _in_order(split, rows) if is_range else _by_number(split, rows):
        yield numbers, values
        if progress is not None:
            progress(len(numbers))


def _in_order(split: Split, rows: Numbers) -> Blocks:
    """As they lie in the store, which needs no copy."""
    start, stop = int(rows[0]), int(rows[-1]) + 1
    done = start
    for values in split.rows.scan(start, stop, _BLOCK_ROWS):
        split.rows.release(start, done)  # those before: their checksum was taken by now
        start, done = done, done + len(values)
        yield np.arange(start, done), values
    split.rows.release(start, done)


def _by_number(split: Split, rows: Numbers) -> Blocks:
    for start in range(0, len(rows), _BLOCK_ROWS):
        part = rows[start : start + _BLOCK_ROWS]
        values = np.empty((len(part), split.dim), split.dtype)
        split.rows.check(np.unique(part // split.spec.chunk_rows).tolist())
        for places, piece in split.rows.pieces(part):
            values[places] = piece
        yield part, values


def export(split: Split, path: Path, rows: Any = None, progress: Progress | None = None) -> list[Path]:
    """Write rows (all by default) with labels, ids and columns; returns the files written.

    .npz, .parquet, .csv and .safetensors hold everything; .npy holds the activations, what belongs to them goes beside.
    """
    writer = _WRITERS.get(path.suffix)
    if writer is None:
        raise InvalidInputError(f"cannot export to {path.name!r}; expected an ending of {', '.join(_WRITERS)}")
    chosen = np.arange(len(split)) if rows is None else parse_rows(rows, len(split))
    with atomic_stream(path) as stream:
        writer(split, chosen, _blocks(split, chosen, progress), stream)
        beside = _write_beside(split, chosen, path) if path.suffix == ".npy" else []
    return [path, *beside]


def exported_files(path: Path, has_columns: bool = False) -> list[Path]:
    """The files that an export to a path leaves: of a .npy also labels and ids, and columns if there are any."""
    beside = (".labels.npy", ".ids.txt", *([".columns.parquet"] if has_columns else []))
    return [path, *(path.with_suffix(ending) for ending in (beside if path.suffix == ".npy" else ()))]


def _write_beside(split: Split, rows: Numbers, path: Path) -> list[Path]:
    labels, ids, columns = exported_files(path, has_columns=True)[1:]
    write_atomic(labels, npy_bytes(split.labels[rows]))
    write_atomic(ids, "".join(f"{name}\n" for name in row_ids(split, rows)).encode())
    if not split.columns:
        return [labels, ids]
    import pyarrow.parquet

    stream = io.BytesIO()
    pyarrow.parquet.write_table(_facts(split, rows).select(list(split.columns)), stream)
    write_atomic(columns, stream.getvalue())
    return [labels, ids, columns]


def _facts(split: Split, rows: Numbers) -> pyarrow.Table:
    """`id`, `class` and columns of rows, texts as plain ones."""
    import pyarrow
    import pyarrow.types as types

    table = split.to_arrow(rows).drop_columns("label")
    for place, field in enumerate(table.schema):
        if types.is_dictionary(field.type) or types.is_large_string(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pyarrow.string()))
    return table


def _write_npy(split: Split, rows: Numbers, blocks: Blocks, stream: IO[bytes]) -> None:
    shape = (len(rows), split.dim)
    header = {"descr": split.dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    for _, values in blocks:
        stream.write(as_bytes(values).data)


def _write_npz(split: Split, rows: Numbers, blocks: Blocks, stream: IO[bytes]) -> None:
    columns = {name: split.columns.stored(name).take(rows).values() for name in split.columns}
    small = {
        "labels": split.labels[rows],
        "ids": row_ids(split, rows).astype(str),
        "classes": np.array(split.classes, dtype=str),
        **({"columns": np.array(list(columns), dtype=str)} if columns else {}),
        **{name: values.astype(str) if values.dtype == object else values for name, values in columns.items()},
    }
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("activations.npy", "w", force_zip64=True) as member:
            _write_npy(split, rows, blocks, member)
        for name, values in small.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def _write_parquet(split: Split, rows: Numbers, blocks: Blocks, stream: IO[bytes]) -> None:
    import pyarrow
    import pyarrow.parquet

    def table(numbers: Numbers, values: NDArray[Any]) -> pyarrow.Table:
        lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.reshape(-1)), split.dim)
        made = _facts(split, numbers).rename_columns({"class": "label"}).add_column(2, "activations", lists)
        return made.replace_schema_metadata({"classes": json.dumps(split.classes)})

    nothing = table(rows[:0], np.empty((0, split.dim), split.dtype))
    with pyarrow.parquet.ParquetWriter(stream, nothing.schema) as writer:
        for numbers, values in blocks:
            writer.write_table(table(numbers, values))


def _write_csv(split: Split, rows: Numbers, blocks: Blocks, stream: IO[bytes]) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    writer = csv.writer(text)
    stored = {name: split.columns.stored(name) for name in split.columns}
    writer.writerow(["row", "id", "class", *stored, *(f"f{feature}" for feature in range(split.dim))])
    shortest = 5 if split.dtype == np.float16 else 9  # digits that tell values apart
    for numbers, values in blocks:
        named = zip(numbers.tolist(), row_ids(split, numbers), class_names(split, numbers), strict=True)
        cells = zip(*(cells_of(column.take(numbers)) for column in stored.values()), strict=True)
        for facts, line in zip(named, values.astype(np.float64).tolist(), strict=True):
            writer.writerow([*facts, *next(cells, ()), *(f"{value:.{shortest}g}" for value in line)])
    text.detach()


def _write_safetensors(split: Split, rows: Numbers, blocks: Blocks, stream: IO[bytes]) -> None:
    """The format is a length, a JSON header and the bytes; its library would want everything in memory."""
    stored = {name: split.columns.stored(name).take(rows) for name in split.columns}
    metadata = {"classes": json.dumps(split.classes)}
    if stored:
        metadata["columns"] = json.dumps({name: column.kind for name, column in stored.items()})
    ids = Texts.of(row_ids(split, rows))
    small = {"labels": split.labels[rows].astype("<i4"), "path_offsets": ids.offsets, "path_bytes": ids.data}
    for name, column in stored.items():
        if isinstance(column.stored, Texts):
            small |= {f"{name}.offsets": column.stored.offsets, f"{name}.bytes": column.stored.data}
        else:
            small[name] = column.stored
    shapes = {"activations": (split.dtype, [len(rows), split.dim])}
    shapes |= {name: (values.dtype, [len(values)]) for name, values in small.items()}
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, (dtype, shape) in shapes.items():
        stop = start + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _TENSORS[dtype.str[1:]], "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of eight bytes
    stream.write(len(text).to_bytes(8, "little") + text)
    for _, values in blocks:
        stream.write(as_bytes(values).data)
    for values in small.values():
        stream.write(as_bytes(values).data)


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


_WRITERS: dict[str, Callable[[Split, Numbers, Blocks, IO[bytes]], None]] = {
    ".npy": _write_npy,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".safetensors": _write_safetensors,
}

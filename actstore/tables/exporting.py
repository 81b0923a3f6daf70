"""Rows of a split into files of other tools, block by block; a file appears whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.layout.columns import Column, Texts
from actstore.progress import Progress
from actstore.reading.rows import parse_rows
from actstore.split import Split
from actstore.storage.atomic_file import as_bytes, atomic_stream, npy_bytes, write_atomic
from actstore.tables.tabular import arrow_type, arrow_values

_TENSORS = {"bool": "I8", "int": "I64", "float": "F64", "date": "I64"}
_BLOCK_ROWS = 4096


class Selection:
    """Some rows of a split in a given order, read block by block."""

    def __init__(self, split: Split, rows: Any = None, progress: Progress | None = None) -> None:
        self.split = split
        self.rows = np.arange(len(split)) if rows is None else parse_rows(rows, len(split))
        self._progress = progress

    @property
    def labels(self) -> NDArray[np.int32]:
        return self.split.labels[self.rows]

    @property
    def ids(self) -> list[str]:
        ids = self.split.ids
        return [ids[row] for row in self.rows.tolist()]

    @property
    def columns(self) -> dict[str, Column]:
        return {name: self.split.columns.stored(name).take(self.rows) for name in self.split.columns}

    def blocks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """(row numbers (n,), activations (n, dim))."""
        is_range = len(self.rows) > 0 and bool((np.diff(self.rows) == 1).all())
        for rows, values in self._in_order() if is_range else self._by_number():
            yield rows, values
            if self._progress is not None:
                self._progress(len(rows))

    def _in_order(self) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """As they lie in the store, which needs no copy."""
        start, stop = int(self.rows[0]), int(self.rows[-1]) + 1
        done = start
        for values in self.split.rows.scan(start, stop, _BLOCK_ROWS):
            self.split.rows.release(start, done)  # those before: their checksum was taken by now
            start, done = done, done + len(values)
            yield np.arange(start, done), values
        self.split.rows.release(start, done)

    def _by_number(self) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        for start in range(0, len(self.rows), _BLOCK_ROWS):
            rows = self.rows[start : start + _BLOCK_ROWS]
            values = np.empty((len(rows), self.split.dim), self.split.dtype)
            self.split.rows.check(np.unique(rows // self.split.spec.chunk_rows).tolist())
            for part, piece in self.split.rows.pieces(rows):
                values[part] = piece
            yield rows, values


def export(split: Split, path: Path, rows: Any = None, progress: Progress | None = None) -> list[Path]:
    """Write rows (all by default) with labels, ids and columns; returns the files written.

    .npz, .parquet, .csv and .safetensors hold everything; .npy holds the activations, what belongs to them goes beside.
    """
    writer = _WRITERS.get(path.suffix)
    if writer is None:
        raise InvalidInputError(f"cannot export to {path.name!r}; expected an ending of {', '.join(_WRITERS)}")
    selection = Selection(split, rows, progress)
    with atomic_stream(path) as stream:
        writer(selection, stream)
        beside = _write_beside(selection, path) if path.suffix == ".npy" else []
    return [path, *beside]


def exported_files(path: Path, has_columns: bool = False) -> list[Path]:
    """The files that an export to a path leaves: of a .npy also labels and ids, and columns if there are any."""
    beside = (".labels.npy", ".ids.txt", *([".columns.parquet"] if has_columns else []))
    return [path, *(path.with_suffix(ending) for ending in (beside if path.suffix == ".npy" else ()))]


def _write_beside(selection: Selection, path: Path) -> list[Path]:
    labels, ids, columns = exported_files(path, has_columns=True)[1:]
    write_atomic(labels, npy_bytes(selection.labels))
    write_atomic(ids, "".join(f"{name}\n" for name in selection.ids).encode())
    if not selection.split.columns:
        return [labels, ids]
    write_atomic(columns, arrow_file(selection.columns))
    return [labels, ids, columns]


def _write_npy(selection: Selection, stream: IO[bytes]) -> None:
    shape = (len(selection.rows), selection.split.dim)
    header = {"descr": selection.split.dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    for _, values in selection.blocks():
        stream.write(as_bytes(values).data)


def _write_npz(selection: Selection, stream: IO[bytes]) -> None:
    small = {
        "labels": selection.labels,
        "ids": np.array(selection.ids, dtype=str),
        "classes": np.array(selection.split.classes, dtype=str),
    }
    if columns := selection.columns:
        small["columns"] = np.array(list(columns), dtype=str)
        for name, column in columns.items():
            small[name] = column.values().astype(str) if column.kind == "text" else column.values()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("activations.npy", "w", force_zip64=True) as member:
            _write_npy(selection, member)
        for name, values in small.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def _write_parquet(selection: Selection, stream: IO[bytes]) -> None:
    import pyarrow
    import pyarrow.parquet

    split = selection.split
    number = pyarrow.float16() if split.dtype == np.float16 else pyarrow.float32()
    stored = {name: split.columns.stored(name) for name in split.columns}
    schema = pyarrow.schema(
        {
            "id": pyarrow.string(),
            "label": pyarrow.string(),
            "activations": pyarrow.list_(number, split.dim),
            **{name: arrow_type(column.kind) for name, column in stored.items()},
        },
        metadata={"classes": json.dumps(split.classes)},
    )
    names = np.array([*split.classes, None], dtype=object)  # label -1 picks the last: none
    ids = split.ids
    with pyarrow.parquet.ParquetWriter(stream, schema) as writer:
        for rows, values in selection.blocks():
            flat = pyarrow.array(values.reshape(-1))
            columns = [
                pyarrow.array([ids[row] for row in rows.tolist()]),
                pyarrow.array(names[split.labels[rows]].tolist(), pyarrow.string()),
                pyarrow.FixedSizeListArray.from_arrays(flat, split.dim),
                *(arrow_values(column.take(rows)) for column in stored.values()),
            ]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def _write_csv(selection: Selection, stream: IO[bytes]) -> None:
    split = selection.split
    names, ids = (*split.classes, ""), split.ids
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    writer = csv.writer(text)
    stored = {name: split.columns.stored(name) for name in split.columns}
    writer.writerow(["row", "id", "class", *stored, *(f"f{feature}" for feature in range(split.dim))])
    for rows, values in selection.blocks():
        cells = zip(*(cells_of(column.take(rows)) for column in stored.values()), strict=True)
        for row, line in zip(rows.tolist(), values.astype(np.float64).tolist(), strict=True):
            # 5 digits tell fp16 values apart, 9 do for fp32
            digits = (f"{value:.{5 if split.dtype == np.float16 else 9}g}" for value in line)
            writer.writerow([row, ids[row], names[split.labels[row]], *next(cells, ()), *digits])
    text.detach()


def _write_safetensors(selection: Selection, stream: IO[bytes]) -> None:
    """The format is a length, a JSON header and the bytes; its library would want everything in memory."""
    split, count = selection.split, len(selection.rows)
    size, labels = count * split.spec.row_bytes, selection.labels.astype("<i4")
    ids = Texts.of(selection.ids)
    columns = {
        "labels": ("I32", labels),
        "path_offsets": ("I64", ids.offsets),
        "path_bytes": ("U8", ids.data),
    }
    metadata = {"classes": json.dumps(split.classes)}
    if stored := selection.columns:
        metadata["columns"] = json.dumps({name: column.kind for name, column in stored.items()})
        for name, column in stored.items():
            columns |= tensors_of(name, column)
    header: dict[str, Any] = {
        "__metadata__": metadata,
        "activations": {
            "dtype": "F16" if split.dtype == np.float16 else "F32",
            "shape": [count, split.dim],
            "data_offsets": [0, size],
        },
    }
    for name, (dtype, values) in columns.items():
        header[name] = {"dtype": dtype, "shape": [len(values)], "data_offsets": [size, size + values.nbytes]}
        size += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of eight bytes
    stream.write(len(text).to_bytes(8, "little") + text)
    for _, values in selection.blocks():
        stream.write(as_bytes(values).data)
    for _, values in columns.values():
        stream.write(as_bytes(values).data)


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


_WRITERS: dict[str, Callable[[Selection, IO[bytes]], None]] = {
    ".npy": _write_npy,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
    ".csv": _write_csv,
    ".safetensors": _write_safetensors,
}

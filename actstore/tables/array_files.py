"""Which arrays a file holds and how they are read, by format: .npy .npz .h5 .safetensors .parquet .pt .pth."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError, reason_of
from actstore.layout.columns import Column, Texts
from actstore.spec import ColumnKind, parse_column_name
from actstore.storage.atomic_file import ENDS_EARLY, load_npy, read_header
from actstore.tables.row_source import ArrayFile, Read, RowSource, array_rows, batched_rows, block_rows, sliced_rows
from actstore.tables.tabular import (
    NUMBERING,
    is_plain,
    parquet_column,
    parquet_file,
    parquet_values,
    wide_csv,
    wide_parquet,
)
from actstore.writing.row_checks import parse_column

if TYPE_CHECKING:
    import pyarrow
    import torch


@contextmanager
def _opened_npy(
    opener: Callable[[], IO[bytes]], name: str, offset: int, dim: int, dtype: np.dtype[Any]
) -> Iterator[Read]:
    """Rows of a C-ordered array behind an .npy header. offset: of its first value, in bytes."""
    buffer = np.empty((block_rows(dim, dtype), dim), dtype)
    with opener() as stream:

        def read(rows: slice) -> NDArray[Any]:
            block = buffer[: rows.stop - rows.start]
            stream.seek(offset + rows.start * dim * dtype.itemsize)
            if stream.readinto(block.reshape(-1).view(np.uint8).data) != block.nbytes:  # type: ignore[attr-defined]
                raise InvalidInputError(f"{name} {ENDS_EARLY}")
            return block

        yield read


def _rows(opener: Callable[[], IO[bytes]], name: str, load: Callable[[], NDArray[Any]]) -> RowSource:
    """load: maps or reads all of an array in Fortran order, whose rows are scattered over the whole of it."""
    with opener() as stream:
        shape, is_fortran, dtype = read_header(stream, name)
        offset = stream.tell()
    if len(shape) != 2 or not shape[1]:
        raise InvalidInputError(f"{name} must be a two-dimensional array, got shape {shape}")
    if not is_fortran or shape[0] <= 1:
        return sliced_rows(shape, dtype, partial(_opened_npy, opener, name, offset, shape[1], dtype))
    try:
        return array_rows(load())
    except ValueError as error:
        raise InvalidInputError(f"{name} {ENDS_EARLY}") from error


def _open_member(path: Path, member: str) -> IO[bytes]:
    # The archive object may go: the member's stream keeps the file open for itself.
    with zipfile.ZipFile(path) as archive:
        return archive.open(member + ".npy")


def load_member(path: Path, member: str) -> NDArray[Any]:
    with _open_member(path, member) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def member_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Of the arrays in an .npz archive, by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except zipfile.BadZipFile as error:
        raise InvalidInputError(f"{path} is not an .npz archive: {error}") from error
    shapes = {}
    for name in names:
        with _open_member(path, name) as stream:
            shapes[name] = read_header(stream, f"{name} of {path}")[0]
    return shapes


_TORCH_ADVICE = "save a tensor, or a dict of tensors, with torch.save"


def as_text(values: NDArray[Any]) -> list[str]:
    """Ids or names as strings, also where they were stored as bytes."""
    try:
        return [text.decode() if isinstance(text, bytes) else str(text) for text in values.reshape(-1).tolist()]
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"ids or names hold {error.object!r}, expected text in UTF-8; decode them") from None


def open_npy(path: Path) -> ArrayFile:
    rows = _rows(lambda: path.open("rb"), str(path), partial(np.load, path, mmap_mode="r"))
    return ArrayFile({"activations": rows.shape}, lambda _: rows, lambda name: load_npy(path, name))


def open_npz(path: Path) -> ArrayFile:
    shapes, values = member_shapes(path), partial(load_member, path)
    # an export lists its columns in an array of that name
    listed = as_text(values("columns")) if len(shapes.get("columns", ())) == 1 else []
    names = [name for name in listed if len(shapes.get(name, ())) == 1]
    columns = {name: partial(lambda name: parse_column(name, values(name)), name) for name in names}

    def rows(name: str) -> RowSource:
        return _rows(partial(_open_member, path, name), f"{name} of {path}", partial(values, name))

    return ArrayFile(shapes, rows, values, columns)


def open_hdf(path: Path) -> ArrayFile:
    import h5py

    def values(name: str) -> NDArray[Any]:
        with h5py.File(path, "r") as file:
            data = file[name]
            return np.asarray(data.asstr()[()] if h5py.check_string_dtype(data.dtype) else data[()])

    @contextmanager
    def opened(name: str) -> Iterator[Read]:
        with h5py.File(path, "r") as file:
            yield file[name].__getitem__

    with h5py.File(path, "r") as file:
        arrays = {name: item for name, item in file.items() if hasattr(item, "shape")}
        shapes = {name: tuple(item.shape) for name, item in arrays.items()}
        types = {name: np.dtype(item.dtype) for name, item in arrays.items()}
    return ArrayFile(shapes, lambda name: sliced_rows(shapes[name], types[name], partial(opened, name)), values)


def open_safetensors(path: Path) -> ArrayFile:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
            classes = json.loads(metadata["classes"]) if "classes" in metadata else None
            kinds = json.loads(metadata.get("columns", "{}"))
    except (SafetensorError, ValueError) as error:
        raise InvalidInputError(f"{path} cannot be read as .safetensors: {error}") from error
    # safetensors has no strings: class names travel in its metadata, ids as bytes
    if classes is not None:
        shapes["classes"] = (len(classes),)
    if {"path_bytes", "path_offsets"} <= set(shapes):
        shapes["ids"] = (shapes["path_offsets"][0] - 1,)

    def values(name: str) -> NDArray[Any]:
        if name == "classes" and classes is not None:
            return np.array(classes, dtype=object)
        with safe_open(path, "numpy") as file:
            if name == "ids":
                return np.array(
                    list(Texts(file.get_tensor("path_bytes"), file.get_tensor("path_offsets"))), dtype=object
                )
            return np.asarray(file.get_tensor(name))

    def column(name: str) -> Column:
        with safe_open(path, "numpy") as file:
            if kinds[name] != "text":
                return Column(kinds[name], file.get_tensor(name))
            return Column("text", Texts(file.get_tensor(f"{name}.bytes"), file.get_tensor(f"{name}.offsets")))

    @contextmanager
    def opened(name: str) -> Iterator[Read]:
        with safe_open(path, "numpy") as file:
            yield file.get_slice(name).__getitem__

    def rows(name: str) -> RowSource:
        with opened(name) as read:
            return sliced_rows(shapes[name], read(slice(0, 1)).dtype, partial(opened, name))

    return ArrayFile(shapes, rows, values, {name: partial(column, name) for name in kinds})


def open_parquet(path: Path, columns: Sequence[str]) -> ArrayFile:
    """A column of lists is the rows; where there is none, every number is a feature."""
    import pyarrow
    import pyarrow.types

    try:
        with parquet_file(path) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
    except pyarrow.ArrowInvalid as error:
        raise InvalidInputError(f"{path} cannot be read as .parquet: {error}") from error
    is_list = (pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list)
    nested = {field.name for field in schema if any(test(field.type) for test in is_list)}
    if not nested:
        return wide_parquet(path, schema, count, columns)
    shapes = {field.name: (count, 0) if field.name in nested else (count,) for field in schema}
    classes = json.loads((schema.metadata or {}).get(b"classes", b"null"))
    if classes is not None:
        shapes["classes"] = (len(classes),)

    def values(name: str) -> NDArray[Any]:
        if name == "classes" and classes is not None:
            return np.array(classes, dtype=object)
        return np.array(parquet_values(path, name).to_pylist(), dtype=object)

    plain = [field.name for field in schema if is_plain(field.type) and field.type != pyarrow.uint64()]
    offered = [name for name in plain if _is_column_name(name) and name.lower() not in NUMBERING]
    kept = {name: partial(parquet_column, path, name) for name in schema.names if name in {*offered, *columns}}
    return ArrayFile(shapes, partial(_list_rows, path), values, kept)


def _is_column_name(name: str) -> bool:
    """Whether a column may be called so; one that may not is left out, unless it is asked for."""
    try:
        return bool(parse_column_name(name))
    except InvalidInputError:
        return False


def _list_rows(path: Path, name: str) -> RowSource:
    """A column of equally long lists of numbers."""
    with parquet_file(path) as file:
        count, first = file.metadata.num_rows, next(file.iter_batches(1, columns=[name]), None)
    if first is None:
        raise InvalidInputError(f"{path} has no rows")
    row = first.column(0).flatten()
    dim = len(row)
    if not dim:
        raise InvalidInputError(f"column {name!r} of {path} has an empty first row; expected a list of numbers")

    def batches(rows: int) -> Iterator[pyarrow.RecordBatch]:
        position = 0
        with parquet_file(path) as file:
            for batch in file.iter_batches(rows, columns=[name]):
                if len(batch.column(0).flatten()) != len(batch) * dim:
                    raise InvalidInputError(
                        f"column {name!r} of {path} has rows of different lengths near row {position}"
                    )
                yield batch
                position += len(batch)

    def values(batch: pyarrow.RecordBatch) -> NDArray[Any]:
        return np.asarray(batch.column(0).flatten().to_numpy(zero_copy_only=False).reshape(-1, dim))

    return batched_rows((count, dim), np.dtype(row.type.to_pandas_dtype()), batches, values)


def open_torch(path: Path) -> ArrayFile:
    """A tensor, or a dict of tensors and lists of text; a tensor alone is called activations."""
    import torch

    from actstore.storage.tensor_file import read_torch_file

    contents = read_torch_file(path, _TORCH_ADVICE, mapped=True)
    if isinstance(contents, torch.Tensor):
        contents = {"activations": contents}
    if not isinstance(contents, Mapping):
        raise InvalidInputError(f"{path} holds a {type(contents).__name__}; {_TORCH_ADVICE}")
    single = (str, int, float, type(None))  # an epoch or a remark is no array
    tensors = {
        str(name): _plain_tensor(value, name, path) for name, value in contents.items() if not isinstance(value, single)
    }

    @contextmanager
    def opened(name: str) -> Iterator[Read]:
        yield lambda part: _as_array(tensors[name][part])

    def rows(name: str) -> RowSource:
        count, dim = tensors[name].shape
        return sliced_rows((count, dim), _as_array(tensors[name][:0]).dtype, partial(opened, name))

    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return ArrayFile(shapes, rows, lambda name: _as_array(tensors[name]))


def _plain_tensor(value: Any, name: Any, path: Path) -> torch.Tensor | NDArray[Any]:
    import torch

    if isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value):
        return np.array(value, dtype=object)
    if isinstance(value, list | tuple) and all(isinstance(entry, int) for entry in value):
        return np.array(value, np.int64)
    if not isinstance(value, torch.Tensor) or value.is_sparse or value.is_quantized or value.is_complex():
        raise InvalidInputError(
            f"{name!r} in {path} is a {type(value).__name__} that holds no plain numbers; {_TORCH_ADVICE}"
        )
    return value.detach()


def _as_array(values: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    """numpy has no bfloat16; fp32 holds all of its values."""
    import torch

    if isinstance(values, np.ndarray):
        return values
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def open_file(path: Path, columns: Sequence[str] = (), kinds: Mapping[str, ColumnKind] | None = None) -> ArrayFile:
    """columns: those of a table that are kept beside its rows. kinds: what they are in the store."""
    openers: dict[str, Callable[[Path], ArrayFile]] = {
        ".npy": open_npy, ".npz": open_npz, ".h5": open_hdf, ".hdf5": open_hdf, ".safetensors": open_safetensors,
        ".pt": open_torch, ".pth": open_torch, ".parquet": partial(open_parquet, columns=columns),
        ".csv": partial(wide_csv, kept=columns, kinds=kinds or {}),
    }  # fmt: skip
    if not path.exists():
        raise InvalidInputError(f"no such file: {path}")
    if path.suffix not in openers:
        raise InvalidInputError(f"{path} has ending {path.suffix!r}; expected one of {', '.join(openers)}")
    try:
        return openers[path.suffix](path)
    except (OSError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise InvalidInputError(f"{path} cannot be read as {path.suffix}: {reason_of(error)}") from error

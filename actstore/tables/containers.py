""".h5, .parquet and .safetensors files as sources of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError
from actstore.tables.row_source import block_rows


class HdfRows:
    def __init__(self, path: Path, name: str) -> None:
        import h5py

        self._path, self._name = path, name
        with h5py.File(path, "r") as file:
            self.shape = tuple(file[name].shape)
            self.dtype = np.dtype(file[name].dtype)

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        import h5py

        step = block_rows(self.shape[1], self.dtype)
        with h5py.File(self._path, "r") as file:
            for position in range(start, stop, step):
                yield file[self._name][position : min(position + step, stop)]


class SafetensorsRows:
    def __init__(self, path: Path, name: str) -> None:
        from safetensors import safe_open

        self._path, self._name = path, name
        with safe_open(path, "numpy") as file:
            part = file.get_slice(name)
            self.shape = tuple(part.get_shape())
            self.dtype = part[0:1].dtype

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        from safetensors import safe_open

        step = block_rows(self.shape[1], self.dtype)
        with safe_open(self._path, "numpy") as file:
            part = file.get_slice(self._name)
            for position in range(start, stop, step):
                yield part[position : min(position + step, stop)]


class ParquetRows:
    """A column of equally long lists of numbers."""

    def __init__(self, path: Path, name: str) -> None:
        import pyarrow.parquet

        self._path, self._name = path, name
        with pyarrow.parquet.ParquetFile(path) as file:
            first = next(file.iter_batches(1, columns=[name]), None)
            if first is None:
                raise InvalidInputError(f"{path} has no rows")
            row = first.column(0).flatten()
            if not len(row):
                raise InvalidInputError(f"column {name!r} of {path} has an empty first row; expected a list of numbers")
            self.shape = (file.metadata.num_rows, len(row))
            self.dtype = np.dtype(row.type.to_pandas_dtype())

    def blocks(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        import pyarrow.parquet

        position = 0
        with pyarrow.parquet.ParquetFile(self._path) as file:
            for batch in file.iter_batches(block_rows(self.shape[1], self.dtype), columns=[self._name]):
                values = batch.column(0).flatten().to_numpy(zero_copy_only=False)
                if len(values) != len(batch) * self.shape[1]:
                    raise InvalidInputError(
                        f"column {self._name!r} of {self._path} has rows of different lengths near row {position}"
                    )
                first, last = max(start, position), min(stop, position + len(batch))
                if first < last:
                    yield values.reshape(len(batch), -1)[first - position : last - position]
                position += len(batch)
                if position >= stop:
                    return

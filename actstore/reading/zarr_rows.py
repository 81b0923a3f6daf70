"""Rows through Zarr: for compressed chunks, and for comparison. Same answers as the other readers, slower."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, StorageError
from actstore.layout.chunk_file import chunk_path
from actstore.layout.metadata import require_chunks
from actstore.reading.checked_chunks import scan_chunks
from actstore.storage.place import Place


class ZarrRows:
    def __init__(self, array: Place, rows: int, dim: int, dtype: str, chunk_rows: int) -> None:
        self.shape = (rows, dim)
        self.dtype = np.dtype("<" + dtype)
        self._path = array
        self._chunk_rows = chunk_rows
        self.decoded_rows: int | None = chunk_rows
        from actstore.layout.zarr_arrays import open_array  # zarr takes a second to import

        self._array = open_array(array)

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) row ids -> (n, dim); each chunk is decoded once however the rows are ordered."""
        if not len(rows):
            return np.empty((0, self.shape[1]), self.dtype)
        wanted, back = np.unique(rows, return_inverse=True)
        require_chunks(self._path, np.unique(wanted // self._chunk_rows).tolist(), ndim=2)
        return self._read(wanted)[back]

    def pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]:
        """As `take`, in one piece: chunks are decoded once, and nothing stays mapped."""
        yield slice(0, len(rows)), self.take(rows)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        if stop <= start:
            return np.empty((0, self.shape[1]), self.dtype)
        require_chunks(self._path, range(start // self._chunk_rows, (stop - 1) // self._chunk_rows + 1), ndim=2)
        return self._read(slice(start, stop))

    def scan(self, start: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
        return scan_chunks(self, self._chunk_rows, start, stop, step)

    def check(self, chunks: Iterable[int]) -> None:
        """Zarr checks the crc of what it decodes."""

    def release(self, start: int, stop: int) -> None:
        """Nothing is held."""

    def _read(self, rows: Any) -> NDArray[Any]:
        try:
            with self._path.reading_errors():
                return np.asarray(self._array.oindex[(rows, slice(None))])
        except StorageError:
            raise
        except (ValueError, RuntimeError, OSError) as error:
            raise DamagedError(f"{self._blame(rows)} is corrupt ({error}); run `actstore verify`") from error

    def _blame(self, rows: Any) -> str:
        """The first of the chunks of some rows that cannot be decoded by itself."""
        touched = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
        for chunk in np.unique(np.asarray(touched) // self._chunk_rows).tolist():
            try:
                self._array[chunk * self._chunk_rows]
            except (ValueError, RuntimeError, OSError):
                return f"chunk {chunk_path(self._path, chunk)}"
        return f"a chunk of {self._path}"

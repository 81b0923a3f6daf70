"""Rows through Zarr: for compressed chunks. Same answers as the other readers, slower."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, StorageError
from actstore.layout.chunk_file import by_chunk, chunk_path
from actstore.layout.metadata import require_chunks
from actstore.reading.checked_chunks import ChunkChecks
from actstore.reading.rows import FetchedRows
from actstore.spec import StoreSpec
from actstore.storage.place import Place


class ZarrRows(FetchedRows):
    """Zarr checks the crc of all that it decodes."""

    def __init__(self, array: Place, spec: StoreSpec, rows: int, checks: ChunkChecks) -> None:
        super().__init__(array, spec, rows, checks)
        from actstore.layout.zarr_arrays import open_array  # zarr takes a second to import

        self._zarr = open_array(array)
        if self._zarr.shape[0] < rows:  # Zarr would cut a slice short
            raise DamagedError(f"{array} holds {self._zarr.shape[0]} rows, expected {rows}; run `actstore verify`")

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n,) row ids -> (n, dim); each chunk is decoded once however the rows are ordered."""
        if not len(rows):
            return np.empty((0, self.shape[1]), self.dtype)
        wanted, back = np.unique(rows, return_inverse=True)
        return self._read(wanted, np.unique(wanted // self._spec.chunk_rows).tolist())[back]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        chunks = [chunk for chunk, _, _ in by_chunk(start, stop, self._spec.chunk_rows)]
        return self._read(slice(start, stop), chunks) if chunks else np.empty((0, self.shape[1]), self.dtype)

    def _read(self, rows: slice | NDArray[np.int64], chunks: list[int]) -> NDArray[Any]:
        """chunks: those that the rows lie in."""
        with self._checks.explained():
            require_chunks(self._array, chunks, ndim=2)
            try:
                with self._array.reading_errors():
                    values = np.asarray(self._zarr.oindex[(rows, slice(None))])
                self._checks.require_same_split()
                return values
            except StorageError:
                raise
            except (ValueError, RuntimeError, OSError) as error:
                raise DamagedError(f"{self._blame(chunks)} is corrupt ({error}); run `actstore verify`") from error

    def _blame(self, chunks: list[int]) -> str:
        """The first of the chunks that cannot be decoded by itself."""
        for chunk in chunks:
            try:
                self._zarr[chunk * self._spec.chunk_rows]
            except (ValueError, RuntimeError, OSError):
                return f"chunk {chunk_path(self._array, chunk)}"
        return f"a chunk of {self._array}"

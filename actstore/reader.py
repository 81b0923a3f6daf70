"""How the rows of a split are read: mapped where that is possible, through Zarr everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actstore.mapped import MappedRows, OutOfMapsError, can_map
from actstore.spec import StoreSpec


class Rows(Protocol):
    """Random and sequential access to (rows, dim) values."""

    shape: tuple[int, int]

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]: ...
    def pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]: ...
    def read(self, start: int, stop: int) -> NDArray[Any]: ...
    def release(self, start: int, stop: int) -> None: ...


def open_rows(array: Path, spec: StoreSpec, rows: int, mapped: bool = True) -> Rows:
    """`mapped=False` asks for the Zarr path, for comparison."""
    arguments = (array, rows, spec.dim, spec.dtype, spec.chunk_rows)
    if mapped and spec.is_raw and can_map(spec.chunk_bytes, -(-rows // spec.chunk_rows)):
        with suppress(OutOfMapsError):
            return MappedRows(*arguments)
    from actstore.unmapped import ZarrRows

    return ZarrRows(*arguments)

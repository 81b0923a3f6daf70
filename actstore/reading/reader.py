"""How the rows of a split are read: mapped where that is possible, else by ranges of bytes, else through Zarr."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actstore.errors import OutOfMapsError
from actstore.reading.cached_rows import CachedRows
from actstore.reading.mapped_rows import MappedRows, can_map
from actstore.reading.ranged_rows import RangedRows
from actstore.reading.zarr_rows import ZarrRows
from actstore.spec import StoreSpec
from actstore.storage.place import Place


class Rows(Protocol):
    """Random and sequential access to (rows, dim) values."""

    shape: tuple[int, int]
    decoded_rows: int | None  # that are decoded together; None: any range is as good as another

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]: ...
    def pieces(self, rows: NDArray[np.int64]) -> Iterator[tuple[slice, NDArray[Any]]]: ...
    def read(self, start: int, stop: int) -> NDArray[Any]: ...
    def release(self, start: int, stop: int) -> None: ...
    def scan(self, start: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
        """Rows in order, at most `step` at a time, for passes over whole chunks: each is checked on the way, and what
        is wrong with a chunk may be raised after its first rows were handed out."""

    def check(self, chunks: Iterable[int]) -> None:
        """Refuse damaged chunks; one that was found sound is not looked at again."""


def open_rows(array: Place, spec: StoreSpec, rows: int, mapped: bool = True) -> Rows:
    """`mapped=False` asks for the Zarr path, for comparison."""
    layout = (rows, spec.dim, spec.dtype, spec.chunk_rows)
    mappable = can_map(spec.chunk_bytes, -(-rows // spec.chunk_rows))
    if mapped and array.local_path is not None and spec.is_raw and mappable:
        with suppress(OutOfMapsError):
            return MappedRows(array.local_path, *layout)
    fetched = RangedRows(array, spec, rows) if mapped and spec.codec == "raw" else ZarrRows(array, *layout)
    if array.cache is None:
        return fetched
    if not mappable:
        warnings.warn(f"chunks of {array} are no whole memory pages, so they are not cached", stacklevel=2)
        return fetched
    try:
        return CachedRows(fetched, array, array.cache, spec, rows)
    except OutOfMapsError:
        return fetched

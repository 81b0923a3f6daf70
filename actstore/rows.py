"""Row ids as users give them -> a checked int64 array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.errors import InvalidInputError, RowRangeError


def parse_rows(rows: ArrayLike, count: int) -> NDArray[np.int64]:
    """Integers of 0..count-1 in any order, or a boolean mask of length `count`.

    Negative ids are refused: search backends return -1 for «no neighbour», and it must not become
    the last row by accident.
    """
    given: NDArray[Any] = np.asarray(rows)
    if given.dtype == bool:
        if given.shape != (count,):
            raise InvalidInputError(f"a row mask must have shape ({count},), got {given.shape}")
        return np.flatnonzero(given)
    if given.size == 0:
        return np.empty(0, np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise InvalidInputError(
            f"rows must be a one-dimensional list of integers, got shape {given.shape}, type {given.dtype}"
        )
    parsed = np.ascontiguousarray(given, dtype=np.int64)
    low, high = int(parsed.min()), int(parsed.max())
    if low < 0 or high >= count:
        raise RowRangeError(f"row {low if low < 0 else high} is out of range: the split has rows 0 to {count - 1}")
    return parsed

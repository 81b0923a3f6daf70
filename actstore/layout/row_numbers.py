"""Row ids as users give them -> a checked int64 array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.errors import InvalidInputError, RowRangeError


def parse_rows(rows: ArrayLike, count: int) -> NDArray[np.int64]:
    """Integers in any order, negative ones counted from the end as numpy does, or a boolean mask of length `count`."""
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
    if low < -count or high >= count:
        wrong = high if high >= count else low
        have = f"rows 0 to {count - 1}, or -{count} to -1 from the end" if count else "no rows"
        raise RowRangeError(f"row {wrong} is out of range: the split has {have}")
    return np.where(parsed < 0, parsed + count, parsed) if low < 0 else parsed

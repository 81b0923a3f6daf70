"""Which rows are summed in one go: ranges that depend on the labels alone, so that every machine adds alike.

Floating-point sums depend on their order. With spans that are a function of the split, and not of how many work
on them, means have the same bytes on one thread, on many workers, and after one of them was lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUMS_BYTES = 16  # per value: two float64 sums
_RATIO = 8  # rows are so many times larger than their sums, which have to be zeroed, sent and added
_LEAST_BYTES = 64 << 20


@dataclass(frozen=True)
class Span:
    """Rows [start, stop), and how many classes they have."""

    start: int
    stop: int
    classes: int


def plan_spans(labels: NDArray[Any], first: int, chunk_rows: int, dim: int, itemsize: int) -> Iterator[Span]:
    """The rows from `first` on in order; borders lie between chunks."""
    last = len(labels)
    seen = np.zeros(int(labels.max(initial=-1)) + 2, bool)  # by label + 1: -1 is unlabelled
    start = at = first
    while at < last:
        stop = min(last, (at // chunk_rows + 1) * chunk_rows)
        seen[labels[at:stop] + 1] = True
        at, classes = stop, int(np.count_nonzero(seen))
        bytes_each = (at - start) * itemsize  # of each feature
        enough = bytes_each >= _RATIO * SUMS_BYTES * classes and bytes_each * dim >= _LEAST_BYTES
        if enough or at == last:
            yield Span(start, at, classes)
            start, seen[:] = at, False

"""Fast paths through torch for fp16 rows: its conversions run at memory speed, numpy's at 0.3 GB/s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

PIECE_ROWS = 512  # 4 MiB of fp32 at 2048 dimensions: stays in the cache between two passes


def borrow(values: NDArray[Any]) -> torch.Tensor:
    """A tensor over the memory of an array, read-only or not. The caller must not write to it."""
    if values.flags.writeable or not values.size:
        return torch.from_numpy(values)
    return torch.from_numpy(np.asarray(_Writable(values)))


class _Writable:
    """torch warns about read-only arrays, which mapped rows are; this hides the flag and keeps the owner alive."""

    def __init__(self, owner: NDArray[Any]) -> None:
        self._owner = owner
        interface = dict(owner.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def convert_into(out: NDArray[Any], values: NDArray[Any]) -> None:
    """out[...] = values with a conversion of type; out of range becomes infinite, as IEEE says."""
    native = values.dtype.newbyteorder("=")
    if native.kind in "fi" and values.dtype.isnative and native.itemsize in (2, 4, 8):
        torch.from_numpy(out).copy_(borrow(values))
    else:
        with np.errstate(over="ignore"):
            out[...] = values


def pieces_as_float32(values: NDArray[Any]) -> Iterator[tuple[int, torch.Tensor]]:
    """(start, (n, dim) float32) over pieces of the rows; the tensor is reused by the next piece."""
    source = borrow(values)
    buffer = torch.empty((min(PIECE_ROWS, len(values)), values.shape[1]))
    for start in range(0, len(values), PIECE_ROWS):
        piece = source[start : start + PIECE_ROWS]
        converted = buffer[: len(piece)]
        converted.copy_(piece)
        yield start, converted


def first_non_finite_row(values: NDArray[Any]) -> int | None:
    """The first row with a NaN or an infinity. A sum over a piece tells whether to look closer."""
    for start, piece in pieces_as_float32(values):
        if not torch.isfinite(piece.sum()):
            bad = ~torch.isfinite(piece).all(dim=1)
            if bad.any():  # a sum of huge finite values may overflow too
                return start + int(bad.nonzero()[0])
    return None

"""The rows that are searched: a split of a store, or a tensor in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import borrow, spread, worker_threads
from actstore.errors import InvalidInputError
from actstore.search.kept_files import load_cached, save_cached

if TYPE_CHECKING:
    from actstore.split import Split

_BUFFER = 1 << 18  # values of float32, 1 MiB: converted and multiplied while they are in the cache
_LENGTHS = (1e-30, 1e30)  # beyond these, products in float32 underflow or overflow


class RowTable:
    """(rows, dim) of float16 or float32, read by range or by number; nothing is copied as a whole."""

    def __init__(self, rows: Split | Tensor | Any) -> None:
        from actstore.split import Split as Splits

        self.split: Split | None = rows if isinstance(rows, Splits) else None
        self._held = _parse_tensor(rows) if self.split is None else torch.empty(0)
        self.shape: tuple[int, int] = rows.shape if self.split is not None else tuple(self._held.shape)  # type: ignore[assignment]
        self._lengths: Tensor | None = None
        self._scales: Tensor | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dim(self) -> int:
        return self.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self._held.dtype if self.split is None else getattr(torch, self.split.dtype.name)

    @property
    def piece_rows(self) -> int:
        """How many rows are converted at a time: 128 at 2048 dimensions was the fastest of 64 to 4096."""
        return max(16, min(2048, _BUFFER // self.dim // 16 * 16))

    @property
    def block_rows(self) -> int | None:
        """Where rows are decoded chunk by chunk, the rows of a chunk; None: any block is as good."""
        return None if self.split is None else self.split.rows.decoded_rows

    def read(self, start: int, stop: int) -> Tensor:
        """(stop - start, dim) in the stored type; not to be written to."""
        if self.split is None:
            return self._held[start:stop]
        return borrow(self.split.rows.read(start, stop))

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """(n,) row numbers -> (n, dim) in the stored type."""
        if self.split is None:
            return self._held.index_select(0, torch.from_numpy(rows))
        return torch.from_numpy(self.split.rows.take(rows))

    def in_memory(self) -> Tensor | None:
        """(rows, dim) all at once, where reading any of them is a look into memory."""
        if self.split is None:
            return self._held
        values = self.split.rows.in_memory
        return None if values is None else borrow(values)

    def check(self) -> None:
        """Refuse damaged chunks of the split before a long work begins."""
        if self.split is not None:
            self.split.rows.check(range(-(-len(self) // self.split.spec.chunk_rows)))

    def _scan(self, start: int, stop: int) -> Iterator[Tensor]:
        """Rows start to stop in order, `piece_rows` at a time, chunks checked."""
        if self.split is None:
            edges = range(start, stop, self.piece_rows)
            return (self._held[first : min(stop, first + self.piece_rows)] for first in edges)
        return map(borrow, self.split.rows.scan(start, stop, self.piece_rows))

    def lengths(self) -> Tensor:
        """(rows,) float32 norms: computed once, and kept beside the store under the hash of its content."""
        with self._lock:
            if self._lengths is None:
                kept = None if self.split is None else load_cached(self.split, "norms")
                known = torch.empty(0) if kept is None else kept["norms"]
                self._lengths = known if len(known) == len(self) else self._measure(known)
            return self._lengths

    def scales(self) -> Tensor:
        """(rows, 1) float32: one over the norm, 0 for a row of zeros."""
        if self._scales is None:
            lengths = self.lengths()
            self._scales = torch.where(lengths > 0, 1 / lengths, 0.0)[:, None]
        return self._scales

    def _measure(self, known: Tensor) -> Tensor:
        """Of all rows; those of the first are known."""
        norms = torch.empty(len(self))
        chunk_rows = 1 if self.split is None else self.split.spec.chunk_rows
        step = max(1, 8192 // chunk_rows) * chunk_rows  # whole chunks, which are checked on the way
        norms[: len(known)] = known
        first = len(known) // step

        def measure(part: int, worker: int) -> None:
            done = (first + part) * step
            for piece in self._scan(done, min(len(self), done + step)):
                norms[done : done + len(piece)] = torch.linalg.vector_norm(piece, dim=1, dtype=torch.float64)
                done += len(piece)

        with worker_threads() as workers:
            spread(measure, -(-len(self) // step) - first, workers)
        low, high = _LENGTHS
        usable = (norms == 0) | ((norms > low) & (norms < high))
        if not usable.all():
            row = int(usable.int().argmin())
            raise InvalidInputError(
                f"row {row} has length {float(norms[row]):.3g}; a search in float32 needs {low:g} to {high:g}, or 0"
            )
        if self.split is not None:
            save_cached(self.split, "norms", {"norms": norms})
        return norms


def _parse_tensor(rows: Any) -> Tensor:
    held = rows if isinstance(rows, Tensor) else torch.from_numpy(np.asarray(rows))
    if held.ndim != 2 or held.dtype not in (torch.float16, torch.float32) or held.device.type != "cpu":
        raise InvalidInputError(
            "rows must be a split or a (rows, dim) float16 or float32 array on the CPU, "
            f"got {tuple(held.shape)} {held.dtype} on {held.device}"
        )
    return held.detach().contiguous()

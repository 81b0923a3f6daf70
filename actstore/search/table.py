"""The rows that are searched, a split of a store or a tensor in memory; the queries; and rows that a search is limited
to: gathered where they are few, masked where they are many."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import borrow, spread, worker_threads
from actstore.errors import InvalidInputError
from actstore.search.index_files import load_cached, save_cached

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


_PIECE = 2048  # vectors
Metric = Literal["cosine", "inner"]


def parse_vectors(vectors: Any, dim: int, metric: Metric = "cosine") -> Tensor:
    """(n, dim) or (dim,) of any real type -> (n, dim) float32, finite; for cosines without zero vectors."""
    try:
        given = vectors.detach().cpu().float().numpy() if isinstance(vectors, Tensor) else np.asarray(vectors)
    except ValueError as error:
        raise InvalidInputError(f"queries must have shape (n, {dim}): {error}") from error
    if given.dtype.kind not in "fiu":
        raise InvalidInputError(f"queries must be real numbers, got type {given.dtype}")
    with np.errstate(over="ignore"):  # becomes an infinity, which is refused
        queries = np.array(np.atleast_2d(given), np.float32, order="C")
    if queries.ndim != 2 or queries.shape[1] != dim:
        raise InvalidInputError(f"queries must have shape (n, {dim}) as the rows do, got {given.shape}")
    _refuse(np.isfinite(queries), "holds a NaN or an infinity")
    if metric == "cosine":
        _refuse(
            (queries != 0).any(axis=1, keepdims=True),
            "is a zero vector, without direction: leave it out, or use metric inner",
        )
    return torch.from_numpy(queries)


def _refuse(good: NDArray[np.bool_], what: str) -> None:
    """The first query of (n, …) for which not all is good."""
    if not good.all():
        raise InvalidInputError(f"query {int(np.argwhere(~good)[0, 0])} {what}")


def parse_k(k: int, rows: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidInputError(f"k must be a positive whole number, got {k!r}")
    if k > rows:
        raise InvalidInputError(f"k is {k:,}, but only {rows:,} rows are there to be found; ask for fewer")
    return int(k)


def parse_metric(metric: str) -> Metric:
    if metric == "cosine" or metric == "inner":
        return metric  # type: ignore[return-value]
    raise InvalidInputError(f"metric must be cosine or inner, got {metric!r}")


def unit(vectors: Tensor) -> Tensor:
    """(n, dim) -> float32 of length one up to rounding; the length is taken in float64. Zeros stay zeros."""
    made = torch.empty(vectors.shape, dtype=torch.float32)
    for start in range(0, len(vectors), _PIECE):  # in float64 all of them at once would take five times their memory
        exact = vectors[start : start + _PIECE].double().numpy()
        length = np.sqrt(np.einsum("nd,nd->n", exact, exact))
        exact *= np.divide(1, length, out=np.zeros_like(length), where=length > 0)[:, None]
        made[start : start + _PIECE] = torch.from_numpy(exact)
    return made


_GATHERED_SHARE = 0.3  # share of the rows below which gathering them is no slower than passing over all
_COPIED_BYTES = 1 << 26  # of some rows
Rows = NDArray[np.int64]  # ascending, distinct
Mask = NDArray[np.bool_]


class SelectedRows(RowTable):
    """Some rows of a table as one of their own; row i of it is row rows[i] there. Few of them are copied."""

    def __init__(self, table: RowTable, rows: Rows) -> None:
        self.split, self.whole, self.rows = None, table, rows
        self.shape = (len(rows), table.dim)
        is_small = len(rows) * table.dim * table.dtype.itemsize <= _COPIED_BYTES
        self._copy = table.take(rows) if is_small else None

    @property
    def block_rows(self) -> int | None:
        return None

    @property
    def dtype(self) -> torch.dtype:
        return self.whole.dtype

    def read(self, start: int, stop: int) -> Tensor:
        if self._copy is not None:
            return self._copy[start:stop]
        chosen = self.rows[start:stop]
        if len(chosen) and chosen[-1] - chosen[0] == len(chosen) - 1:
            return self.whole.read(int(chosen[0]), int(chosen[-1]) + 1)
        return self.whole.take(chosen)

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        return self.whole.take(self.rows[rows])

    def in_memory(self) -> Tensor | None:
        return self._copy

    def lengths(self) -> Tensor:
        return self.whole.lengths()[torch.from_numpy(self.rows)]

    def scales(self) -> Tensor:
        return self.whole.scales()[torch.from_numpy(self.rows)]


def parse_rows(rows: Any, count: int) -> Rows:
    """Ascending, distinct rows of a table of so many: what compiled loops look up unchecked."""
    given = np.asarray(rows)
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise InvalidInputError(f"rows must be whole numbers (n,), got {given.dtype} {given.shape}")
    parsed: Rows = np.ascontiguousarray(given, np.int64)
    if len(parsed) and (parsed[0] < 0 or parsed[-1] >= count or bool((parsed[1:] <= parsed[:-1]).any())):
        raise InvalidInputError(f"rows must ascend from 0 to below {count:,} without repetition")
    return parsed


def are_few(rows: Rows, table: RowTable) -> bool:
    return len(rows) < _GATHERED_SHARE * len(table)


def mask_of(rows: Rows, count: int) -> Mask:
    """(count,) whether a row is one of them."""
    mask = np.zeros(count, bool)
    mask[rows] = True
    return mask

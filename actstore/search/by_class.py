"""The nearest row of every class: exact cosine, block by block, so that memory does not grow with the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from actstore.compute.tensors import borrow, one_thread
from actstore.errors import InvalidInputError

if TYPE_CHECKING:
    from actstore.layout.class_index import ClassIndex
    from actstore.split import Split

ROWS_PER_BLOCK = 2048
QUERIES_PER_BLOCK = 1024  # scores of a block take 8 MiB
_TINY = 1e-12  # a zero vector has cosine 0 with everything


@dataclass(frozen=True)
class ClassRows:
    """Rows grouped by class: those of class c are rows[offsets[c] : offsets[c + 1]], and every class has some."""

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]  # (n_class + 1,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, index: ClassIndex, labels: Sequence[int] | NDArray[Any]) -> ClassRows:
        """All rows of these classes, in this order."""
        return cls.joined([index.rows(int(label)) for label in labels], [index.names[int(label)] for label in labels])

    @classmethod
    def joined(cls, groups: Sequence[NDArray[np.int64]], names: Sequence[str]) -> ClassRows:
        """groups[c]: the rows of the class names[c]."""
        if empty := next((name for name, group in zip(names, groups, strict=True) if not len(group)), None):
            raise InvalidInputError(f"class {empty!r} has no rows to search; leave it out, or add rows of it")
        if not groups:
            raise InvalidInputError("no classes to search; name at least one")
        offsets = np.concatenate([[0], np.cumsum([len(group) for group in groups])])
        return cls(np.concatenate(groups).astype(np.int64), offsets.astype(np.int64))


def best_by_class(
    source: Split | Tensor,
    chosen: ClassRows,
    queries: Tensor,
    embed: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """(n, dim) float32 -> (n, n_class): the highest cosine of each query with any chosen row of each class.

    source: a split, or a tensor of rows (n_rows, dim). embed: maps rows (m, source dim) to those that are compared,
    (m, dim); queries are given embedded.
    """
    require_finite(queries)
    best = queries.new_full((len(queries), len(chosen)), -torch.inf)
    units = unit(queries)
    scores = queries.new_empty(QUERIES_PER_BLOCK * ROWS_PER_BLOCK)  # reused: fresh pages cost more than the product
    for start in range(0, len(chosen.rows), ROWS_PER_BLOCK):
        stop = min(start + ROWS_PER_BLOCK, len(chosen.rows))
        rows = _read(source, chosen.rows[start:stop], queries)
        rows = unit(rows if embed is None else embed(rows))  # (block, dim)
        if rows.shape[1] != queries.shape[1]:
            raise InvalidInputError(f"queries must have dim {rows.shape[1]} as the rows have, got {queries.shape[1]}")
        segments = _segments(chosen.offsets, start, stop)
        for first in range(0, len(units), QUERIES_PER_BLOCK):
            part = units[first : first + QUERIES_PER_BLOCK]
            block = scores[: len(part) * len(rows)].view(len(part), len(rows))
            torch.mm(part, rows.T, out=block)
            _raise_best(best[first : first + QUERIES_PER_BLOCK], block, segments)
    return best


def unit(values: Tensor) -> Tensor:
    """(…, dim) -> the same of length 1 along the last dimension; zero stays zero."""
    return functional.normalize(values, dim=-1, eps=_TINY)


def require_finite(queries: Tensor) -> None:
    if queries.ndim != 2:
        raise InvalidInputError(f"queries must be (n, dim), got shape {tuple(queries.shape)}")
    finite = torch.isfinite(queries).all(dim=1)
    if not finite.all():
        raise InvalidInputError(f"query {int((~finite).nonzero()[0])} holds a NaN or an infinity; leave it out")


def _read(source: Split | Tensor, rows: NDArray[np.int64], like: Tensor) -> Tensor:
    """(m, source dim) in the queries' type, on their device."""
    if isinstance(source, Tensor):
        return source[torch.from_numpy(rows).to(source.device)].to(like)
    with one_thread():
        return borrow(source.take(rows)).to(like.dtype).to(like.device)


def _segments(offsets: NDArray[np.int64], start: int, stop: int) -> list[tuple[int, int, int]]:
    """(class, from, to) of every class with rows in start..stop, counted from start."""
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets, stop, side="left"))
    bounds = np.clip(offsets[first : last + 1], start, stop) - start
    return [(first + place, int(bounds[place]), int(bounds[place + 1])) for place in range(last - first)]


def _raise_best(best: Tensor, block: Tensor, segments: Sequence[tuple[int, int, int]]) -> None:
    with one_thread():
        for label, low, high in segments:
            torch.maximum(best[:, label], block[:, low:high].amax(dim=1), out=best[:, label])

"""What a search is asked: query vectors and k, checked once for every engine."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError

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

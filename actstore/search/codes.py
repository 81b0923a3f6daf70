"""Coordinates as 8-bit codes with one scale per vector, and norms of what the codes lose, never too small."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.search.integers import OFFSET

_LARGEST = 127
_SMALLEST = 1e-9  # scale: vectors that vanish along these directions have codes of zero
_UP = 1 + 2.0**-20  # more than float32 rounds


@dataclass(frozen=True)
class Encoded:
    """Of n vectors (n, p): codes (n, p) stored; scale, error >= |vector - scale codes|, norm >= |scale codes|; (n,)."""

    codes: Tensor
    scale: Tensor
    error: Tensor
    norm: Tensor


def encode_rows(along: Tensor) -> Encoded:
    """(n, p) float32 coordinates; norms are in float64."""
    scale = (along.abs().amax(1) / _LARGEST).clamp_(min=_SMALLEST)[:, None]
    codes = (along / scale).round_().clamp_(-_LARGEST, _LARGEST)
    lost = torch.addcmul(along, codes, scale, value=-1)  # each rounded by 2**-23 of its coordinate at most
    norm = torch.linalg.vector_norm(along, dim=1, dtype=torch.float64)
    error = torch.linalg.vector_norm(lost, dim=1, dtype=torch.float64) + 2.0**-22 * norm
    return Encoded(codes.add_(OFFSET).to(torch.uint8), scale[:, 0], error, norm + error)


@dataclass(frozen=True)
class EncodedQueries:
    """codes (p, n) int8; scale, error >= |query - scale codes|, norm >= |query|: (n,) float64."""

    codes: Tensor
    scale: NDArray[np.float64]
    error: NDArray[np.float64]
    norm: NDArray[np.float64]


def encode_queries(along: NDArray[np.float64]) -> EncodedQueries:
    """(n, p) float64 coordinates."""
    scale = np.maximum(np.abs(along).max(axis=1, initial=0) / _LARGEST, _SMALLEST)
    codes = np.clip(np.rint(along / scale[:, None]), -_LARGEST, _LARGEST)
    error = np.linalg.norm(along - codes * scale[:, None], axis=1)
    norm = np.linalg.norm(along, axis=1)
    stored = torch.from_numpy(np.ascontiguousarray(codes.T.astype(np.int8)))
    return EncodedQueries(stored, scale, error * _UP + 1e-12, norm * _UP + 1e-12)


def rounded_up(values: Tensor) -> Tensor:
    """float64 >= 0 -> float32, not below."""
    return (values * _UP).float()

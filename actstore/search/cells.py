"""Rows in cells around centres: where to look first for rows near a query. They change no answer, only its time."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.search.rotation import SAMPLE
from actstore.streams.sampling import Stream, generator

CELL_WIDTH = 128  # turned coordinates that are compared, after the first
_STEPS = 4  # of Lloyd's algorithm


def fit_centres(along: Tensor, rows: int) -> Tensor:
    """(n, 1 + width) coordinates of a sample -> (cells, width) centres; cells: the square root of rows."""
    points = along[:, 1:].contiguous()
    count = max(1, min(int(np.sqrt(rows)), len(points) // 4, SAMPLE // 8))
    chosen = generator(0, 0, Stream.CELLS).choice(len(points), min(count, len(points)), replace=False)
    centres = points[torch.from_numpy(chosen)]
    for _ in range(_STEPS):
        cell = _nearest(points, centres)
        sizes = torch.bincount(cell, minlength=len(centres))[:, None]
        sums = torch.zeros_like(centres).index_add_(0, cell, points)
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
    return centres.contiguous()


def cell_of(along: Tensor, centres: Tensor) -> Tensor:
    """(n, p) coordinates -> (n,) int32."""
    return _nearest(along[:, 1 : 1 + centres.shape[1]], centres).int()


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    """By Euclidean distance."""
    half = centres.square().sum(1) / 2
    return (points @ centres.T - half).argmax(1)


class Cells:
    """centres (cells, width), cells (rows,)."""

    def __init__(self, centres: Tensor, cells: Tensor) -> None:
        self._centres, self._cells = centres.double().numpy(), cells.numpy()

    @cached_property
    def _order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows by cell, and where each cell begins."""
        cells = self._cells.astype(np.int16) if len(self._centres) < 1 << 15 else self._cells  # sorted by radix
        sizes = np.bincount(self._cells, minlength=len(self._centres))
        return np.argsort(cells, kind="stable"), np.concatenate([[0], np.cumsum(sizes)])

    def nearest(self, along: NDArray[np.float64]) -> NDArray[np.int64]:
        """(n, p) coordinates of queries -> (n, 16 at most) cells by their product with the query, highest first."""
        scores = along[:, 1 : 1 + self._centres.shape[1]] @ self._centres.T
        return np.argsort(-scores, axis=1)[:, :16]

    def rows(self, cells: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
        """Of the first of these cells that hold as many rows as wanted, and at most twice that."""
        order, begins = self._order
        found, held = [], 0
        for cell in cells.tolist():
            found.append(order[begins[cell] : begins[cell + 1]])
            held += len(found[-1])
            if held >= wanted:
                break
        return np.concatenate(found)[: 2 * wanted]

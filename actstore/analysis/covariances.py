"""Second moments within and between several representations of the same rows, in one pass and bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement

import torch
from torch import Tensor


class Covariances:
    """Sums of products of rows that are added block by block.

    Blocks are multiplied in float32 and added up in float64. They are shifted by the mean of the first block and
    divided by its size before, so that nothing cancels or overflows; the measures here do not depend on either.
    Memory: 8 bytes for every pair of features.
    """

    def __init__(self, first: Sequence[Tensor]) -> None:
        """first: a block (n, dim) of each representation, which is looked at and not added."""
        self._centres = [block.double().mean(0).float() for block in first]
        shifted = [block.double() - centre for block, centre in zip(first, self._centres, strict=True)]
        self._sizes = [float(block.square().mean().sqrt()) or 1.0 for block in shifted]
        self._sums = [torch.zeros(block.shape[1], dtype=torch.float64) for block in first]
        pairs = combinations_with_replacement(range(len(first)), 2)
        self._products = {
            (i, j): torch.zeros((first[i].shape[1], first[j].shape[1]), dtype=torch.float64) for i, j in pairs
        }
        self.rows = 0

    def add(self, blocks: Sequence[Tensor]) -> None:
        """A block (n, dim) of each representation, of the same rows."""
        scaled = [self._scaled(block.float(), number) for number, block in enumerate(blocks)]
        for total, block in zip(self._sums, scaled, strict=True):
            total += block.sum(0, dtype=torch.float64)
        for (i, j), product in self._products.items():
            product += scaled[i].T @ scaled[j]
        self.rows += len(blocks[0])

    def between(self, i: int, j: int) -> Tensor:
        """(dim of i, dim of j) covariance in float64, in units of the representations' sizes; i <= j."""
        product = self._products[i, j] / self.rows
        return product.addr_(self._sums[i] / self.rows, self._sums[j] / self.rows, alpha=-1)

    def centred(self, rows: Tensor, i: int) -> Tensor:
        """Rows (n, dim) of representation i in float64, in its units, less its mean."""
        return self._scaled(rows.double(), i) - self._sums[i] / self.rows

    def _scaled(self, rows: Tensor, i: int) -> Tensor:
        return (rows - self._centres[i]).div_(self._sizes[i])

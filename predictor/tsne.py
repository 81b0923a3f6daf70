"""Exact t-SNE: points in a plane whose neighbours are those of the high-dimensional points.

van der Maaten and Hinton, Visualizing Data using t-SNE, JMLR 9, 2008. The start along the principal axes, which makes
it deterministic, and a learning rate in proportion to the points follow Kobak and Berens, The art of using t-SNE for
single-cell transcriptomics, Nature Communications 10, 2019. All pairs are computed, for some thousand points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.tensors import one_thread

MOST_POINTS = 5000  # 100 MB for each of four matrices of pairs
_TINY = 1e-12


@dataclass(frozen=True)
class TsneConfig:
    """perplexity: about how many neighbours a point has. exaggeration: of the attraction, in the `early` steps."""

    perplexity: float = 20.0
    steps: int = 600
    early: int = 200
    exaggeration: float = 12.0


def tsne(
    points: NDArray[Any],
    config: TsneConfig = TsneConfig(),  # noqa: B008 - frozen
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float64]:
    """(n, dim) -> (n, 2), centred. The same points always give the same map."""
    count = len(points)
    if points.ndim != 2 or not 4 <= count <= MOST_POINTS:
        raise InvalidInputError(f"t-SNE needs 4 to {MOST_POINTS:,} points (n, dim), got {points.shape}")
    if not np.isfinite(points).all():
        raise InvalidInputError("t-SNE needs finite points, got a NaN or an infinity; leave that point out")
    perplexity = min(config.perplexity, (count - 1) / 3)  # beyond, neighbours would have to be nearly equally near
    with one_thread():  # 1,000 points: the matrices stay in the cache, a second thread would only wait
        wanted = torch.from_numpy(joint_affinities(points, perplexity)).float()
        return _descend(wanted, _principal_start(points), config, progress).numpy().astype(np.float64)


def joint_affinities(points: NDArray[Any], perplexity: float) -> NDArray[np.float64]:
    """(n, dim) -> (n, n): symmetric, zero on the diagonal, of sum 1."""
    conditional = conditional_affinities(squared_distances(points), perplexity)
    joint: NDArray[np.float64] = (conditional + conditional.T) / (2 * len(points))
    return joint


def conditional_affinities(distances: NDArray[np.float64], perplexity: float) -> NDArray[np.float64]:
    """Squared distances (n, n) -> rows of sum 1 whose entropy is log(perplexity), found by bisection of each width."""
    count = len(distances)
    low, high = np.zeros(count), np.full(count, np.inf)
    typical = distances.sum(1) / max(1, count - 1)
    precision = 1 / np.maximum(typical, _TINY)  # 1 / (2 sigma^2) of every point
    off_diagonal = ~np.eye(count, dtype=bool)
    nearest = np.where(off_diagonal, distances, np.inf).min(1, keepdims=True)
    for _ in range(64):
        weight = np.exp(-(distances - nearest) * precision[:, None]) * off_diagonal
        share = weight / weight.sum(1, keepdims=True)
        entropy = -(share * np.log(np.maximum(share, _TINY))).sum(1)
        too_wide = entropy > np.log(perplexity)
        low, high = np.where(too_wide, precision, low), np.where(too_wide, high, precision)
        precision = np.where(np.isinf(high), 2 * precision, (low + np.where(np.isinf(high), 0, high)) / 2)
    result: NDArray[np.float64] = share
    return result


def squared_distances(points: NDArray[Any]) -> NDArray[np.float64]:
    """(n, dim) -> (n, n)."""
    rows = np.asarray(points, np.float64)
    rows = rows - rows.mean(0)
    length = (rows**2).sum(1)
    found: NDArray[np.float64] = np.maximum(length[:, None] + length[None, :] - 2 * rows @ rows.T, 0)
    np.fill_diagonal(found, 0)
    return found


def loss_and_gradient(wanted: Tensor, places: Tensor, exaggeration: float = 1.0) -> tuple[Tensor, Tensor]:
    """The Kullback-Leibler divergence of the affinities in the plane from the wanted ones, and its slope (n, 2).

    The loss is without exaggeration; the gradient has the attraction multiplied by it.
    """
    kernel, attraction = _kernel(places), wanted
    total = kernel.sum()
    positive = wanted > 0
    loss = (wanted[positive] * torch.log(wanted[positive] * total / kernel[positive])).sum()
    return loss, _gradient(attraction * exaggeration, kernel, total, places)


def _kernel(places: Tensor) -> Tensor:
    """Student's t with one degree of freedom between all places: (n, 2) -> (n, n), zero on the diagonal."""
    length = places.square().sum(1)
    distances = torch.addmm(length[None, :], places, places.T, alpha=-2).add_(length[:, None]).clamp_min_(0)
    return distances.add_(1).reciprocal_().fill_diagonal_(0)


def _gradient(wanted: Tensor, kernel: Tensor, total: Tensor, places: Tensor) -> Tensor:
    force = torch.addcmul(wanted * kernel, kernel, kernel, value=-float(1 / total))
    return 4 * (force.sum(1, keepdim=True) * places - force @ places)


def _principal_start(points: NDArray[Any]) -> Tensor:
    """The first two principal components, small, each with its largest entry positive."""
    rows = np.asarray(points, np.float64)
    rows = rows - rows.mean(0)
    left, scale, _ = np.linalg.svd(rows, full_matrices=False)
    start = (left * scale)[:, :2]
    if start.shape[1] < 2:
        start = np.pad(start, ((0, 0), (0, 2 - start.shape[1])))
    signs = np.sign(start[np.abs(start).argmax(0), range(2)])
    spread = max(float(start[:, 0].std()), _TINY)
    return torch.from_numpy((start * np.where(signs == 0, 1, signs) * 1e-4 / spread).astype(np.float32))


def _descend(wanted: Tensor, places: Tensor, config: TsneConfig, progress: Callable[[int], None] | None) -> Tensor:
    """Gradient descent with momentum; a step along a coordinate grows while its slope keeps its sign."""
    # with few points steps must be short: their affinities are large (60 points flew apart at a rate of 50)
    early_rate, rate = len(wanted) / (2 * config.exaggeration), len(wanted) / 4
    moved, gain = torch.zeros_like(places), torch.ones_like(places)
    exaggerated = wanted * config.exaggeration
    for step in range(config.steps):
        kernel = _kernel(places)
        is_early = step < config.early
        slope = _gradient(exaggerated if is_early else wanted, kernel, kernel.sum(), places)
        gain = torch.where(slope * moved > 0, gain * 0.8, gain + 0.2).clamp_min_(0.01)
        moved = (0.5 if is_early else 0.8) * moved - (early_rate if is_early else rate) * gain * slope
        places = places + moved
        places = places - places.mean(0)
        if progress is not None:
            progress(1)
    return places

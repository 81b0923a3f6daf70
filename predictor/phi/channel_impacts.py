"""What phi makes of the channels of an activation ("Comparing Activation Impacts")."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.phi.network import Phi


def impact(weights: Tensor) -> NDArray[np.float64]:
    """I_j = sum_i |w_ij| of every channel j: (rows, dim) -> (dim,)."""
    return weights.detach().abs().double().sum(0).numpy()


def top_k_similarity(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """OS(k) for k = 1..dim: the share of the k channels of most impact that both have in common."""
    if first.shape != second.shape or first.ndim != 1:
        raise InvalidInputError(f"expected two impacts (dim,) of one dim, got {first.shape} and {second.shape}")
    dim = len(first)
    place = np.empty(dim, np.int64)  # of each channel in the second order
    place[np.argsort(-second, kind="stable")] = np.arange(dim)
    order = np.argsort(-first, kind="stable")
    # channel at position i of the first order is common to both top-k from k = max(i, its place) + 1 on
    enters = np.maximum(np.arange(dim), place[order])
    common = np.cumsum(np.bincount(enters, minlength=dim))
    return common / np.arange(1, dim + 1)


def random_similarity(dim: int) -> NDArray[np.float64]:
    """The expected OS(k) of a random order: k / dim."""
    return np.arange(1, dim + 1) / dim


def analyse(phi: Phi, head: Tensor | None) -> dict[str, Any]:
    """The section's figures beside the paper's. head: w_large^pt (n_base, dim), where it is at hand.

    For phi2 the impact is that of the first layer's weights, which read the activation's channels.
    """
    weights = phi.layers[0].get_parameter("weight").detach()
    diagonal = weights.diagonal()
    figures: dict[str, Any] = {
        "phi": phi.spec.kind,
        "diagonal_min": float(diagonal.min()),
        "diagonal_max": float(diagonal.max()),
        "diagonal_share_mean": float((diagonal.abs() / weights[: len(diagonal)].abs().sum(1)).mean()),
        "impact_mean": float(impact(weights).mean()),
        "impact_std": float(impact(weights).std()),
    }
    if head is None:
        return figures
    if head.shape[1] != phi.spec.dim:
        raise InvalidInputError(f"the head reads activations of dim {head.shape[1]}, phi of {phi.spec.dim}")
    of_head = impact(head)
    unit = of_head / np.linalg.norm(of_head)
    similarity = top_k_similarity(impact(weights), of_head)
    ks = [k for k in (1, 10, 50, 100, 200, 500, 1000) if k < phi.spec.dim]
    return figures | {
        "head_impact_mean": float(unit.mean()),
        "head_impact_std": float(unit.std()),
        "top_k_similarity": {k: float(similarity[k - 1]) for k in ks},
        "random_similarity": {k: float(random_similarity(phi.spec.dim)[k - 1]) for k in ks},
        "similarity_curve": similarity.tolist(),
    }


PAPER = {
    "diagonal_min": 0.744,
    "diagonal_max": 0.976,
    "diagonal_share_mean": 0.275,  # from a line of its source that did not make it into print
    "head_impact_mean": 2.13e-2,
    "head_impact_std": 5.83e-3,
}

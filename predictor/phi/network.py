"""phi: from a statistic of a category's activations to the parameters of its classifier, and what it makes of the
channels of an activation ("Comparing Activation Impacts").

Qiao, Liu, Shen and Yuille, "Few-Shot Image Recognition by Predicting Parameters from Activations", CVPR 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actstore.errors import InvalidInputError
from predictor.protocol import PhiKind

LAYERS = {"phi1": 1, "phi2": 2, "phi2star": 2}
FIRST_SCALE = 10.0  # of unit-norm queries: cosines alone are too flat for a softmax over many categories


@dataclass(frozen=True)
class PhiSpec:
    """The shape of phi.

    kind: phi1 is one linear layer, phi2 two with a ReLU between; phi2star is phi2 trained on means only.
    input_norm: statistics are brought to unit length first. Without biases that changes nothing, as phi's output
    is normalised and phi is positively homogeneous. query_norm: unit queries and a learnt scale; otherwise
    the activation's own length is the temperature. signed: activations may be negative, as those of transformers are;
    the ReLU of two layers then sees every channel and its opposite (twice the width), so that nothing is lost at first.
    """

    kind: PhiKind
    dim: int
    input_norm: bool = False
    bias: bool = False
    query_norm: bool = False
    signed: bool = False

    def __post_init__(self) -> None:
        if self.kind not in LAYERS:
            raise InvalidInputError(f"phi must be one of {', '.join(LAYERS)}, got {self.kind!r}")
        if self.dim < 1:
            raise InvalidInputError(f"dim must be positive, got {self.dim}")

    def to_json(self) -> dict[str, Any]:
        """`signed` only where it is so: trainings of before it are still recognised as the same."""
        return {name: value for name, value in asdict(self).items() if name != "signed" or value}


class Phi(nn.Module):
    """Starts as the identity: an untrained phi is the cosine classifier."""

    def __init__(self, spec: PhiSpec) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleList(first_layers(spec))
        self.scale = nn.Parameter(torch.tensor(FIRST_SCALE)) if spec.query_norm else None

    def forward(self, statistics: Tensor) -> Tensor:
        """(n, dim) -> parameters (n, dim) of unit length."""
        first, *rest = self.layers
        hidden: Tensor = first(unit(statistics) if self.spec.input_norm else statistics)
        for layer in rest:
            hidden = layer(torch.relu(hidden))
        return unit(hidden)

    def scale_queries(self, activations: Tensor) -> Tensor:
        """(n, dim) -> (n, dim): what the parameters are multiplied with."""
        return activations if self.scale is None else unit(activations) * self.scale

    def logits(self, parameters: Tensor, activations: Tensor) -> Tensor:
        """(rows, dim) and (n, dim) -> (n, rows)."""
        return torch.mm(self.scale_queries(activations), parameters.T)


def first_layers(spec: PhiSpec) -> list[nn.Linear]:
    """The identity; where channels may be negative as x = relu(x) - relu(-x)."""
    same = torch.eye(spec.dim)
    if LAYERS[spec.kind] == 1:
        return [_layer(same, spec.bias)]
    if not spec.signed:
        return [_layer(same, spec.bias), _layer(same, spec.bias)]
    return [_layer(torch.cat([same, -same]), spec.bias), _layer(torch.cat([same, -same], 1), spec.bias)]


def _layer(weight: Tensor, bias: bool) -> nn.Linear:
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta").to_empty(device="cpu")  # no random start to overwrite
    with torch.no_grad():
        layer.weight.copy_(weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def unit(rows: Tensor) -> Tensor:
    """Rows (…, dim) of length 1; a row of zeros stays one."""
    result: Tensor = _Unit.apply(rows)  # type: ignore[no-untyped-call]
    return result


class _Unit(torch.autograd.Function):
    """rows / |rows| with its gradient (g - (g.u) u) / |rows| in three passes; composed of torch's functions it takes
    eight, which is 2% of a step of phi1 at 900 x 2048."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min_(1e-12)
        units = torch.div(rows, lengths)
        ctx.save_for_backward(units, lengths)
        return units

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        units, lengths = ctx.saved_tensors
        along = torch.linalg.vecdot(gradient, units)[..., None]
        return torch.addcmul(gradient, units, along, value=-1).div_(lengths)


def build_phi(spec: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Phi:
    """A phi with these weights; spec as `PhiSpec.to_json` gives it."""
    phi = Phi(PhiSpec(**spec))
    expected = {name: tuple(tensor.shape) for name, tensor in phi.state_dict().items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != shapes:
        raise InvalidInputError(f"weights of {spec['kind']} must have the shapes {expected}, got {shapes}")
    phi.load_state_dict(dict(tensors))
    return phi.eval().requires_grad_(False)


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
        "random_similarity": {k: k / phi.spec.dim for k in ks},  # what is expected of a random order
        "similarity_curve": similarity.tolist(),
    }


PAPER = {
    "diagonal_min": 0.744,
    "diagonal_max": 0.976,
    "diagonal_share_mean": 0.275,  # from a line of its source that did not make it into print
    "head_impact_mean": 2.13e-2,
    "head_impact_std": 5.83e-3,
}

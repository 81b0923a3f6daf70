"""phi as a recogniser beside the baselines: the same draws, the same scores, the same tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from predictor.phi.network import Phi
from predictor.phi.rule import PhiRule, Rule
from predictor.protocol.constant import nearest_shots
from predictor.protocol.method import Separable, Support
from predictor.protocol.method_key import CALIBRATED, LABELS

Aggregate = Literal["max", "mean"]


class PredictedParameters(Separable):
    """phi(mean) for every base category; for a novel one phi of each example, and the highest score counts.

    base_means: (n_base, dim). aggregate `mean`: phi(mean of the examples) instead, as the authors' 5-shot code
    does. novel_bias: added to every novel score. variant: a word for such choices, which its name then has too.
    """

    def __init__(
        self,
        phi: Phi,
        base_means: Tensor,
        aggregate: Aggregate = "max",
        novel_bias: float = 0.0,
        variant: str = "",
    ) -> None:
        self.phi, self.aggregate, self.novel_bias = phi, aggregate, novel_bias
        self.key, self.variant, self.paper_name = phi.spec.kind, variant, LABELS[phi.spec.kind]
        self.name = ", ".join(filter(None, (self.paper_name, variant)))
        self.base_parameters = phi(base_means)  # (n_base, dim)

    def base_scores(self, queries: Tensor) -> Tensor:
        return self.phi.logits(self.base_parameters, queries)

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        return novel_scores(self.phi, queries, support.activations, self.aggregate) + self.novel_bias

    def query_lengths(self, queries: Tensor) -> Tensor:
        return lengths_of(PhiRule(self.phi), queries)

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """Tasks of novel categories alone (tasks, way, shots, dim), (tasks, n, dim) -> (tasks, n, way)."""
        parameters = novel_parameters(PhiRule(self.phi), support, self.aggregate)  # (tasks, way, rows, dim)
        scaled = self.phi.scale_queries(queries)
        return torch.einsum("tnd,twrd->tnwr", scaled, parameters).amax(3)


class Calibrated(PredictedParameters):
    """With the aggregate and the bias that calibration found, by number of shots."""

    def __init__(
        self, phi: Phi, base_means: Tensor, settings: Mapping[int, tuple[Aggregate, float]], fitted_on: str = ""
    ) -> None:
        super().__init__(phi, base_means, variant=CALIBRATED)
        self.fitted_on = fitted_on
        self.paper_name = self.name  # the paper calibrates nothing
        self.settings = dict(settings)

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        aggregate, bias = self.settings[nearest_shots(self.settings, support.shots)]
        return novel_scores(self.phi, queries, support.activations, aggregate) + bias


def novel_scores(rule: Rule | Phi, queries: Tensor, examples: Tensor, aggregate: Aggregate) -> Tensor:
    """(n, dim) and (n_novel, shots, dim) -> (n, n_novel)."""
    rule = PhiRule(rule) if isinstance(rule, Phi) else rule
    parameters = novel_parameters(rule, examples, aggregate)  # (n_novel, rows, dim)
    n_novel, rows, dim = parameters.shape
    return rule.scores(parameters.reshape(-1, dim), queries).reshape(-1, n_novel, rows).amax(2)


def novel_parameters(rule: Rule, examples: Tensor, aggregate: Aggregate) -> Tensor:
    """(…, shots, dim) -> (…, rows, dim): a row per example, or a single one for their mean."""
    if aggregate == "mean":
        examples = examples.mean(-2, keepdim=True)
    return rule.parameters(examples.reshape(-1, examples.shape[-1])).reshape(examples.shape)


def lengths_of(rule: Rule, queries: Tensor) -> Tensor:
    """(n, dim) -> (n,): of what is read, seen from where rows begin."""
    point = rule.directions(queries[:0])[1]
    lengths: Tensor = torch.linalg.vector_norm(rule.read(queries) - point, dim=1)
    return lengths.clamp_min(1e-12)

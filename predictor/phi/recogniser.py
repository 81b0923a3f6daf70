"""phi, and the network's own classifier, as recognisers beside the baselines: the same draws, scores and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from predictor.phi.network import Phi
from predictor.phi.rule import Centred, PhiRule, Rule
from predictor.protocol.constant import nearest_shots
from predictor.protocol.head import Head
from predictor.protocol.method import Separable, Support
from predictor.protocol.method_key import CALIBRATED, LABELS

Aggregate = Literal["max", "mean"]
Settings = Mapping[int, tuple[Aggregate, float]]


class ByRule(Separable):
    """A rule makes the rows of novel categories.

    aggregate: `max` makes a row of each example, and the highest score counts; `mean` one of their mean. novel_bias:
    added to every novel score. settings: both by number of shots, as calibration found them, in the place of the former
    two. variant: a word for such choices, which the name then has too.
    """

    def __init__(
        self, name: str, rule: Rule, aggregate: Aggregate, novel_bias: float = 0.0, variant: str = "",
        settings: Settings | None = None, fitted_on: str = "",
    ) -> None:  # fmt: skip
        self.rule, self.aggregate, self.novel_bias = rule, aggregate, novel_bias
        self.settings, self.fitted_on = dict(settings or {}), fitted_on
        self.variant = CALIBRATED if self.settings else variant
        self.name = ", ".join(filter(None, (name, self.variant)))

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        aggregate, bias = self.aggregate, self.novel_bias
        if self.settings:
            aggregate, bias = self.settings[nearest_shots(self.settings, support.shots)]
        return novel_scores(self.rule, queries, support.activations, aggregate) + bias

    def query_lengths(self, queries: Tensor) -> Tensor:
        """Of what is read, seen from where rows begin."""
        point = self.rule.directions(queries[:0])[1]
        lengths: Tensor = torch.linalg.vector_norm(self.rule.read(queries) - point, dim=1)
        return lengths.clamp_min(1e-12)


class PredictedParameters(ByRule):
    """phi(mean) for every base category; for a novel one phi of each example, or of their mean, as the authors' 5-shot
    code does. base_means: (n_base, dim)."""

    def __init__(
        self, phi: Phi, base_means: Tensor, aggregate: Aggregate = "max", novel_bias: float = 0.0, variant: str = "",
        settings: Settings | None = None, fitted_on: str = "",
    ) -> None:  # fmt: skip
        label = LABELS[phi.spec.kind]
        super().__init__(label, PhiRule(phi), aggregate, novel_bias, variant, settings, fitted_on)
        self.phi, self.key = phi, phi.spec.kind
        self.paper_name = self.name if self.settings else label  # the paper calibrates nothing
        self.base_parameters = phi(base_means)  # (n_base, dim)

    def base_scores(self, queries: Tensor) -> Tensor:
        return self.phi.logits(self.base_parameters, queries)

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """Tasks of novel categories alone (tasks, way, shots, dim), (tasks, n, dim) -> (tasks, n, way)."""
        parameters = novel_parameters(self.rule, support, self.aggregate)  # (tasks, way, rows, dim)
        return torch.einsum("tnd,twrd->tnwr", self.rule.read(queries), parameters).amax(3)


class OwnClassifier(ByRule):
    """The network's own classifier as the base, with no training at all: its rows for the base categories, and for a
    novel one (a - c) . unit(s - c), where c is the centre of the base categories' means and s the mean of the examples.

    Both are linear in the activation a, and on a network trained with a softmax of about the same scale. On
    mini-ImageNet's activations this ranks better than phi (docs/results.md); to train such a map on base categories
    that pretend to be novel made it worse.

    head: of the base categories, in their order. base_means: (n_base, dim).
    """

    key = "head"

    def __init__(
        self, head: Head, base_means: Tensor, aggregate: Aggregate = "mean", settings: Settings | None = None,
        fitted_on: str = "",
    ) -> None:  # fmt: skip
        name, rule = "Own classifier, centred examples", Centred(base_means.mean(0))
        super().__init__(name, rule, aggregate, settings=settings, fitted_on=fitted_on)
        self.head = head

    def base_scores(self, queries: Tensor) -> Tensor:
        return self.head.scores(queries)


def novel_scores(rule: Rule, queries: Tensor, examples: Tensor, aggregate: Aggregate) -> Tensor:
    """(n, dim) and (n_novel, shots, dim) -> (n, n_novel)."""
    parameters = novel_parameters(rule, examples, aggregate)  # (n_novel, rows, dim)
    n_novel, rows, dim = parameters.shape
    return rule.scores(parameters.reshape(-1, dim), queries).reshape(-1, n_novel, rows).amax(2)


def novel_parameters(rule: Rule, examples: Tensor, aggregate: Aggregate) -> Tensor:
    """(…, shots, dim) -> (…, rows, dim): a row per example, or a single one for their mean."""
    examples = rule.statistics(examples, aggregate)
    return rule.parameters(examples.reshape(-1, examples.shape[-1])).reshape(examples.shape)

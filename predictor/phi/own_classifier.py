"""The network's own classifier as the base, with no training at all: its rows for the base categories, and for a novel
one (a - c) . unit(s - c), where c is the centre of the base categories' means and s the mean of the examples.

Both are linear in the activation a, and on a network trained with a softmax of about the same scale. On mini-ImageNet's
activations this ranks better than phi (docs/results.md); to train such a map on base categories that pretend to be
novel made it worse.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from predictor.phi.recogniser import Aggregate, lengths_of, novel_scores
from predictor.phi.rule import Centred
from predictor.protocol.constant import nearest_shots
from predictor.protocol.head import Head
from predictor.protocol.method import Separable, Support
from predictor.protocol.method_key import CALIBRATED

KEY, NAME = "head", "Own classifier, centred examples"


class OwnClassifier(Separable):
    """head: of the base categories, in their order. base_means: (n_base, dim). settings: what calibration found, by
    number of shots, and on what; without it this aggregate and no constant."""

    key = KEY

    def __init__(
        self,
        head: Head,
        base_means: Tensor,
        aggregate: Aggregate = "mean",
        settings: Mapping[int, tuple[Aggregate, float]] | None = None,
        fitted_on: str = "",
    ) -> None:
        self.head, self.rule, self.aggregate = head, Centred(base_means.mean(0)), aggregate
        self.settings, self.fitted_on = dict(settings or {}), fitted_on
        self.variant = CALIBRATED if self.settings else ""
        self.name = ", ".join(filter(None, (NAME, self.variant)))

    def base_scores(self, queries: Tensor) -> Tensor:
        return self.head.scores(queries)

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        aggregate, bias = self.aggregate, 0.0
        if self.settings:
            aggregate, bias = self.settings[nearest_shots(self.settings, support.shots)]
        return novel_scores(self.rule, queries, support.activations, aggregate) + bias

    def query_lengths(self, queries: Tensor) -> Tensor:
        return lengths_of(self.rule, queries)

"""phi, and the network's own classifier, as methods beside the baselines: the same draws, scores and tables."""

from __future__ import annotations

import torch
from torch import Tensor

from predictor.phi.network import Phi
from predictor.phi.rule import Centred, PhiRule, Rule
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.head import Head, head_for
from predictor.protocol.method import Aggregate, Method
from predictor.protocol.results import LABELS


class ByRule(Method):
    """A method that makes parameters of novel categories by a rule, such as phi.

    Attributes:
        rule: how examples become parameters.
        aggregate: "max" makes parameters of each example and takes the highest score; "mean" makes them of their mean.
        novel_bias: the constant, which is added to every novel score.
    """

    aggregates = ("max", "mean")
    scores_categories_apart = True
    rule: Rule
    aggregate: Aggregate
    novel_bias: float = 0.0

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        """Score queries for the novel categories by their parameters.

        Args:
            queries: (n, dim) in float32.
            support: (ways, shots, dim) in float32, the examples of each category.

        Returns:
            (n, ways).
        """
        parameters = novel_parameters(self.rule, support, self.aggregate)  # (ways, rows, dim)
        ways, rows, dim = parameters.shape
        scores = self.rule.scores(parameters.reshape(-1, dim), queries).reshape(-1, ways, rows)
        return scores.amax(2) + self.novel_bias

    def query_lengths(self, queries: Tensor) -> Tensor:
        """Give the length of each query, measured from the point where the rule measures directions.

        Args:
            queries: (n, dim) in float32.

        Returns:
            (n,).
        """
        point = self.rule.directions(queries[:0])[1]
        lengths: Tensor = torch.linalg.vector_norm(self.rule.read(queries) - point, dim=1)
        return lengths.clamp_min(1e-12)

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """Score the queries of many tasks at once.

        Args:
            support: (tasks, way, shots, dim), the examples.
            queries: (tasks, n, dim).

        Returns:
            (tasks, n, way).
        """
        parameters = novel_parameters(self.rule, support, self.aggregate)  # (tasks, way, rows, dim)
        tasks, way, rows, dim = parameters.shape
        offsets = self.rule.offsets(parameters.reshape(-1, dim)).view(tasks, 1, way, rows)
        scores = torch.einsum("tnd,twrd->tnwr", self.rule.read(queries), parameters) + offsets
        return scores.amax(3) + self.novel_bias


class PhiMethod(ByRule):
    """phi(mean) for every base category; for a novel one phi of each example, or of their mean, as the authors' 5-shot
    code does."""

    trained_on_base = True

    def __init__(self, phi: Phi, aggregate: Aggregate = "max", novel_bias: float = 0.0) -> None:
        self.phi, self.key, self.rule = phi, phi.spec.kind, PhiRule(phi)
        self.aggregate, self.novel_bias = aggregate, novel_bias
        self.paper_name = self.episode_name = LABELS[phi.spec.kind]
        self.variant = ", ".join(["mean"] * (aggregate == "mean") + [f"bias {novel_bias:g}"] * bool(novel_bias))
        self.name = ", ".join(filter(None, (self.paper_name, self.variant)))

    @property
    def base_parameters(self) -> Tensor:
        """(n_base, dim)"""
        parameters: Tensor = self.base.once(self.phi, lambda: self.phi(self.base.means))
        return parameters

    def base_scores(self, queries: Tensor) -> Tensor:
        return self.phi.logits(self.base_parameters, queries)


class OwnClassifier(ByRule):
    """The network's own classifier for the base categories, extended by novel ones without any training.

    A novel category scores an activation a by (a - c) . unit(s - c): s is the mean of its examples, and c the centre
    of the base categories' means. Both kinds of scores are linear in a and of about the same scale.

    Args:
        head: the network's own classifier.
        aggregate: "mean" takes s as the mean of the examples, "max" the highest score over single examples.

    Examples:
        >>> head = predictor.Head(torch.from_numpy(train.means()[:3]), torch.zeros(3), split.base)
        >>> results = predictor.evaluate(predictor.OwnClassifier(head), store, split, shots=1, draws=2)
    """

    key, name = "head", "Own classifier, centred examples"

    def __init__(self, head: Head, aggregate: Aggregate = "mean") -> None:
        self.given, self.aggregate = head, aggregate

    def prepare(self, base: BaseCategories) -> None:
        """Take the rows of the base categories from the classifier, and compute their centre.

        Args:
            base: names and means of the base categories.
        """
        self.base, self.head = base, head_for(self.given, base.names, base.dim)
        self.rule = Centred(base.means.mean(0))

    def base_scores(self, queries: Tensor) -> Tensor:
        """Score queries by the network's own classifier.

        Args:
            queries: (n, dim) in float32.

        Returns:
            (n, n_base).
        """
        return self.head.scores(queries)


def novel_parameters(rule: Rule, examples: Tensor, aggregate: Aggregate) -> Tensor:
    """(…, shots, dim) -> (…, rows, dim): a row per example, or a single one for their mean."""
    examples = rule.statistics(examples, aggregate)
    return rule.parameters(examples.reshape(-1, examples.shape[-1])).reshape(examples.shape)

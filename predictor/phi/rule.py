"""How the examples of a category become a row of parameters, by phi, or without training, about a centre; and the
methods that are measured beside the baselines: phi, and the network's own classifier.

A rule is what a classifier and a method hold; they do not ask which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.phi.network import Phi, build_phi, unit
from predictor.protocol.base_categories import BaseCategories
from predictor.protocol.head import Head, head_for
from predictor.protocol.method import Aggregate, Method
from predictor.protocol.results import LABELS


@dataclass(frozen=True)
class LinearRows:
    """Parameters of categories as one linear layer: row i scores category `category[i]`, the highest row counts.

    weight: (rows, dim). bias: (rows,). category: (rows,) positions among the categories, ascending. same_as: (rows,)
    the first row with the same weight, None where all differ: its product counts for all of them, as a product may
    round equal rows differently, by where they stand.
    """

    weight: Tensor
    bias: Tensor
    category: Tensor
    same_as: Tensor | None = None

    def scores(self, read: Tensor) -> Tensor:
        """(n, dim), read as the rule reads activations -> (n, rows)."""
        if self.same_as is None:
            return torch.addmm(self.bias, read, self.weight.T)
        return torch.mm(read, self.weight.T)[:, self.same_as] + self.bias

    def highest(self, of_rows: Tensor, n_categories: int) -> Tensor:
        """(n, rows) -> (n, n_categories): of each category its highest row."""
        if len(self.category) == n_categories:
            return of_rows
        best = of_rows.new_full((len(of_rows), n_categories), -torch.inf)
        return best.scatter_reduce_(1, self.category.expand_as(of_rows), of_rows, "amax")


class Rule(ABC):
    """Statistics -> rows of parameters; a row's score is `read(activation) @ row + offset`, which is linear in what is
    read."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def dim(self) -> int: ...

    @abstractmethod
    def parameters(self, statistics: Tensor) -> Tensor:
        """(n, dim) means or single examples -> rows (n, dim)."""

    @staticmethod
    def statistics(examples: Tensor, aggregate: str) -> Tensor:
        """(…, shots, dim) -> (…, rows, dim): what rows are made of, every example (`max`) or their mean (`mean`)."""
        return examples.mean(-2, keepdim=True) if aggregate == "mean" else examples

    def offsets(self, rows: Tensor) -> Tensor:
        """(n, dim) rows of this rule -> (n,) added to their scores."""
        return rows.new_zeros(len(rows))

    def read(self, activations: Tensor) -> Tensor:
        """(n, dim) -> (n, dim): what rows are multiplied with."""
        return activations

    @property
    def query_scale(self) -> Tensor | None:
        """Where activations are read as unit vectors: what they are multiplied with then."""
        return None

    def rows(self, statistics: Tensor, counts: Tensor | None = None, bias: float = 0.0) -> LinearRows:
        """statistics: (n, dim) of all categories, one after the other. counts: of each category how many; by default
        one. bias: added to all scores."""
        counts = torch.ones(len(statistics), dtype=torch.int64) if counts is None else counts
        category = torch.repeat_interleave(torch.arange(len(counts)), counts)
        same_as = first_equal(statistics)
        if same_as is None:
            weight = self.parameters(statistics)
            return LinearRows(weight, self.offsets(weight) + bias, category)
        first, place = np.unique(same_as.numpy(), return_inverse=True)
        weight = self.parameters(statistics[torch.from_numpy(first)])
        again = torch.from_numpy(place)
        return LinearRows(weight[again], self.offsets(weight)[again] + bias, category)

    def fitted(self, support: Sequence[Tensor]) -> Rule:
        """As it is for these categories, of (n, dim) examples each; most rules do not depend on them."""
        return self

    def directions(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Unit vectors (n, dim) of rows, and the point (dim,) from which activations are seen along them."""
        return unit(rows), rows.new_zeros(self.dim)

    def base_directions(self, rows: Tensor) -> Tensor:
        """The same of rows that this rule did not make: (n, dim) -> (n, dim)."""
        return unit(rows)

    @abstractmethod
    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors, and what else is needed to make it again with `rule_from_file`."""


class PhiRule(Rule):
    """phi of the statistic."""

    kind = "phi"

    def __init__(self, phi: Phi) -> None:
        self.phi = phi

    @property
    def dim(self) -> int:
        return self.phi.spec.dim

    def parameters(self, statistics: Tensor) -> Tensor:
        rows: Tensor = self.phi(statistics)
        return rows

    def read(self, activations: Tensor) -> Tensor:
        return self.phi.scale_queries(activations)

    @property
    def query_scale(self) -> Tensor | None:
        return self.phi.scale

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return dict(self.phi.state_dict()), self.phi.spec.to_json()


class Centred(Rule):
    """scale * (a - centre) . unit(s - centre): the direction in which a category differs from the average image.

    Nothing is trained. The scores are linear in the activation, so they stand beside those of a network's own
    classifier; among each other they are in the order of the cosine about the centre. centre: (dim,).
    """

    kind = "centred"

    def __init__(self, centre: Tensor, scale: float = 1.0) -> None:
        if centre.ndim != 1 or not len(centre) or not torch.isfinite(centre).all():
            raise InvalidInputError(f"a centre must be finite numbers (dim,), got {tuple(centre.shape)}")
        if not 0 < scale < float("inf"):
            raise InvalidInputError(f"the scale of scores must be positive, got {scale}")
        self.centre, self.scale = centre.detach().float(), float(scale)

    @property
    def dim(self) -> int:
        return len(self.centre)

    def parameters(self, statistics: Tensor) -> Tensor:
        return self.scale * unit(statistics - self.centre.to(statistics))

    def offsets(self, rows: Tensor) -> Tensor:
        return -(rows @ self.centre.to(rows))

    def directions(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return unit(rows), self.centre.to(rows)

    def base_directions(self, rows: Tensor) -> Tensor:
        """What tells a category from the others: a vector that all rows of a classifier share changes no answer."""
        return unit(rows - rows.mean(0)) if len(rows) > 1 else unit(rows)

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"centre": self.centre}, {"scale": self.scale}


class OwnCentre(Centred):
    """The same about a centre that the examples themselves give, for a network whose average image is not at hand.

    centre: the mean of the categories' means, drawn towards zero as if PSEUDO categories lay there, since that of two
    categories says nothing about what they have in common. scale: SHARPNESS at the usual distance from the centre.
    Both were chosen on 80 categories of mini-ImageNet through efficientnet-lite0, 5- and 20-way, 1 and 5 shots: against
    no centre, known from unknown by the cosine improved from an AUROC of 0.81 to 0.84 and 20-way probabilities from
    1.00 to 0.67 nats, 5 shots; with the average of all images as centre they have 0.85 and 0.67.
    """

    kind = "own"
    PSEUDO, SHARPNESS = 2, 16.0

    def __init__(self, dim: int, sharpness: float = SHARPNESS) -> None:
        super().__init__(torch.zeros(dim), sharpness)
        self.sharpness = float(sharpness)

    def fitted(self, support: Sequence[Tensor]) -> Rule:
        if not support:
            return self
        means = torch.stack([examples.mean(0) for examples in support])
        centre = means.sum(0) / (len(means) + self.PSEUDO)
        distance = torch.cat(list(support)).sub(centre).norm(dim=1).mean()
        return Centred(centre, self.sharpness / max(float(distance), 1e-6))

    def to_file(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"dim": self.dim, "sharpness": self.sharpness}


def rule_from_file(kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> Rule:
    if kind == PhiRule.kind:
        return PhiRule(build_phi(about, tensors))
    if kind == Centred.kind:
        return Centred(tensors["centre"], about["scale"])
    if kind == OwnCentre.kind:
        return OwnCentre(about["dim"], about["sharpness"])
    raise InvalidInputError(f"parameters are made by phi, centred or own, got {kind!r}; a later version wrote it")


def first_equal(rows: Tensor) -> Tensor | None:
    """(n, dim) float32 -> (n,) the first row with the bits of each; None where no two are equal."""
    content = rows.detach().cpu().contiguous().numpy()
    sums = content.view(np.int32).sum(axis=1, dtype=np.int64)  # exact in any order; nearly always they differ
    if len(np.unique(sums)) == len(sums):
        return None
    first: dict[bytes, int] = {}
    return torch.tensor([first.setdefault(row.tobytes(), place) for place, row in enumerate(content)])


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

    @property
    @abstractmethod
    def known(self) -> LinearRows:
        """Parameters of the base categories."""

    def base_scores(self, queries: Tensor) -> Tensor:
        return self.known.scores(self.rule.read(queries))

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        statistics = self.rule.statistics(support, self.aggregate)
        ways, count, dim = statistics.shape
        rows = self.rule.rows(statistics.reshape(-1, dim), torch.full((ways,), count))
        # the constant is added after the maximum: within the rows it would change last digits
        return rows.highest(rows.scores(self.rule.read(queries)), ways) + self.novel_bias

    def query_lengths(self, queries: Tensor) -> Tensor:
        point = self.rule.directions(queries[:0])[1]  # from which directions are measured
        lengths: Tensor = torch.linalg.vector_norm(self.rule.read(queries) - point, dim=1)
        return lengths.clamp_min(1e-12)

    def episode_scores(self, support: Tensor, queries: Tensor) -> Tensor:
        statistics = self.rule.statistics(support, self.aggregate)  # (tasks, way, rows, dim)
        tasks, way, rows, dim = statistics.shape
        made = self.rule.parameters(statistics.reshape(-1, dim))
        parameters, offsets = made.reshape(statistics.shape), self.rule.offsets(made).view(tasks, 1, way, rows)
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
    def known(self) -> LinearRows:
        return self.base.once(self.phi, lambda: self.rule.rows(self.base.means))


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
        self.base, self.rule = base, Centred(base.means.mean(0))
        head = head_for(self.given, base.names, base.dim)
        self._known = LinearRows(head.weight.to(base.means), head.bias.to(base.means), torch.arange(len(base.names)))

    @property
    def known(self) -> LinearRows:
        return self._known

"""What a classifier makes of activations: a rule turns examples into rows of parameters, and rows into scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import median_high
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.spec import is_unicode
from predictor.classifier.scoring import (
    LinearRows,
    first_equal,
    leave_one_out,
    parse_activations,
    parse_examples,
    ranked,
    rows_of_statistics,
)
from predictor.classifier.unknown import PHOTOS, Unknown, refuse_reserved
from predictor.phi.network import Phi, unit
from predictor.phi.rule import Centred, OwnCentre, PhiRule, Rule
from predictor.protocol.head import Head
from predictor.protocol.method import Aggregate

MOST_HELD_OUT = 30  # examples of a category that the threshold of unknown is fitted on


class ActivationClassifier:
    """Base categories with parameters of their own, and novel ones learnt from a few examples each.

    rule: how examples become parameters; a phi stands for its rule. base_parameters: (n_base, dim), base_bias:
    (n_base,), zero where there is none; without a base it knows what it is taught alone. novel_bias: added to every
    novel score. aggregate: `max` makes a row of every example and the highest counts (the paper's "Inference"); `mean`
    makes one of their mean. about: where the activations must come from, kept in the file.
    """

    def __init__(
        self,
        rule: Rule | Phi,
        base: Sequence[str] = (),
        base_parameters: Tensor | None = None,
        aggregate: Aggregate = "max",
        novel_bias: float = 0.0,
        about: Mapping[str, Any] | None = None,
        base_bias: Tensor | None = None,
        unknown: Unknown | None = None,
    ) -> None:
        self.rule: Rule = PhiRule(rule) if isinstance(rule, Phi) else rule
        self.base, dim = tuple(base), self.rule.dim
        weight = torch.empty(0, dim) if base_parameters is None else base_parameters.detach()
        bias = torch.zeros(len(self.base)) if base_bias is None else base_bias.detach()
        for what, tensor, shape in (("parameters", weight, (len(self.base), dim)), ("biases", bias, (len(self.base),))):
            if tensor.shape != shape:
                raise InvalidInputError(f"base {what} must be {shape}, got {tuple(tensor.shape)}")
        self.base_parameters, self.base_bias = weight, bias
        self.about, self.unknown = dict(about or {}), unknown
        self.support: dict[str, Tensor] = {}  # novel category -> its examples (n, dim)
        self.aggregate: Aggregate = aggregate
        self.set_constant(novel_bias, aggregate)

    @classmethod
    def from_means(cls, phi: Phi, base: Sequence[str], means: Tensor, **options: Any) -> Self:
        """phi of the means (n_base, dim) of every base category."""
        rule = PhiRule(phi)
        return cls(rule, base, rows_of_statistics(rule, means)[0], **options)

    @classmethod
    def from_head(cls, head: Head, base: Sequence[str], centre: Tensor | None = None, **options: Any) -> Self:
        """The network's own classifier as the base, and directions about the centre (dim,) of the base's means beside
        it; without one, about a centre that the examples give."""
        rule = OwnCentre(head.dim) if centre is None else Centred(centre)
        options = {"aggregate": "mean", **options}
        return cls(rule, base, head.weight, base_bias=head.bias, **options)

    @classmethod
    def alone(cls, dim: int, **options: Any) -> Self:
        """Without any base: it will know what it is taught, and nothing else."""
        return cls(OwnCentre(dim), **{"aggregate": "mean", "unknown": Unknown(PHOTOS), **options})

    @property
    def phi(self) -> Phi:
        if not isinstance(self.rule, PhiRule):
            raise InvalidInputError("this classifier was made without a phi; choose one that `ppa adapt --phi` made")
        return self.rule.phi

    @property
    def dim(self) -> int:
        return self.rule.dim

    @property
    def categories(self) -> tuple[str, ...]:
        """Base, then novel in the order they were learnt; the order of the scores."""
        return (*self.base, *self.support)

    def adapt(self, name: str, activations: ArrayLike | Tensor, extend: bool = False) -> None:
        """Learn a category from its examples (n, dim) or (dim,). extend: add examples to one that is there."""
        self.adapt_all({name: activations}, extend)

    def adapt_all(self, examples: Mapping[str, ArrayLike | Tensor], extend: bool = False) -> None:
        """Learn many categories at once; they may have different numbers of examples. All or none are added."""
        for name in examples:
            if isinstance(name, str) and name not in self.support:
                refuse_reserved(name)
        self.restore(examples, extend)

    def restore(self, examples: Mapping[str, ArrayLike | Tensor], extend: bool = False) -> None:
        """The same for what was learnt before, whatever it was called then: files keep opening."""
        parsed = {name: parse_examples(name, given, self.dim) for name, given in examples.items()}
        for name in parsed:
            if name in self.base:
                raise InvalidInputError(f"{name!r} is a base category already; give the new category another name")
            if name in self.support and not extend:
                raise InvalidInputError(
                    f"category {name!r} exists already; extend it with more examples, remove it first, or choose "
                    "another name"
                )
        for name, rows in parsed.items():
            known = self.support.get(name)
            self.support[name] = rows if known is None else torch.cat([known, rows])
        self._forget_rows()

    def remove(self, name: str) -> None:
        self._require_novel(name)
        del self.support[name]
        self._forget_rows()

    def rename(self, name: str, new: str) -> None:
        self._require_novel(name)
        if not new or new in self.categories:
            raise InvalidInputError(f"cannot rename {name!r}: {new!r} is taken or empty")
        if not is_unicode(new):
            raise InvalidInputError(f"cannot rename {name!r}: {new!r} is not valid Unicode text")
        refuse_reserved(new)
        self.support = {new if key == name else key: rows for key, rows in self.support.items()}

    @cached_property
    def fitted(self) -> Rule:
        """The rule for what was taught; anew after every change."""
        return self.rule.fitted(list(self.support.values()))

    @cached_property
    @torch.no_grad()
    def rows(self) -> LinearRows:
        """Predicted anew after every change."""
        novel = self.rows_of(list(self.support.values()))
        category = torch.cat([torch.arange(len(self.base)), novel.category + len(self.base)])
        weight = torch.cat([self.base_parameters, novel.weight])
        return LinearRows(weight, torch.cat([self.base_bias, novel.bias]), category, first_equal(weight))

    @torch.no_grad()
    def rows_of(self, support: Sequence[Tensor]) -> LinearRows:
        """Of categories with these examples (n, dim) each, beside the base; their numbers begin at 0."""
        parts = [self.rule.statistics(examples, self.aggregate) for examples in support]
        counts = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        weight, offsets = rows_of_statistics(self.fitted, torch.cat([*parts, torch.empty(0, self.dim)]))
        return LinearRows(weight, offsets + self.novel_bias, torch.repeat_interleave(torch.arange(len(counts)), counts))

    @torch.no_grad()
    def scores(self, activations: ArrayLike | Tensor) -> Tensor:
        """(n, dim) -> (n, n_categories) before the softmax."""
        queries = self.fitted.read(parse_activations("queries", activations, self.dim))
        return self.rows.highest(self.rows.scores(queries), len(self.categories))

    @torch.no_grad()
    def centred_unit_vectors(self, activations: ArrayLike | Tensor) -> Tensor:
        """(n, dim) -> unit vectors (n, dim) from the centre, as cosines take them."""
        point = self.fitted.directions(torch.empty(0, self.dim))[1]
        return unit(self.fitted.read(parse_activations("queries", activations, self.dim)) - point)

    @torch.no_grad()
    def cosines(self, activations: ArrayLike | Tensor) -> Tensor:
        """(n, dim) -> (n, n_categories) with the row of each category, about the centre."""
        first = len(self.base)
        directions = torch.cat([self._base_directions, self.fitted.directions(self.rows.weight[first:])[0]])
        return self.rows.highest(self.centred_unit_vectors(activations) @ directions.T, len(self.categories))

    @cached_property
    def _base_directions(self) -> Tensor:
        """(n_base, dim) of unit length: whatever is taught, they stay the same."""
        return self.rule.base_directions(self.base_parameters)

    def familiarity(self, activations: ArrayLike | Tensor, only_mine: bool = False) -> Tensor:
        """(n, dim) -> (n,): the highest cosine with a known category; what is below `threshold` is unknown. only_mine:
        with taught categories alone."""
        self._require_categories()
        cosines, first = self.cosines(activations), len(self.base)
        if only_mine and self.support:
            return cosines[:, first:].amax(1)
        cosines[:, :first] += self.base_shift
        return cosines.amax(1)

    @property
    def base_shift(self) -> float:
        """Added to cosines with the base, so that what is fitted to taught categories is their threshold too."""
        own, base = self._fitted_threshold, None if self.unknown is None else self.unknown.base_threshold
        return 0.0 if own is None or base is None else own - base

    def is_known(self, activations: ArrayLike | Tensor, only_mine: bool = False) -> Tensor:
        """(n, dim) -> (n,) bool; True for all where no threshold is at hand."""
        return self.familiarity(activations, only_mine) >= (-torch.inf if self.threshold is None else self.threshold)

    @property
    def threshold(self) -> float | None:
        """Of familiarity: as set by hand, else what 95% of held-out examples reach; None for files of before 0.2.0."""
        return self._fitted_threshold if self.unknown is None or self.unknown.at is None else self.unknown.at

    @cached_property
    def _fitted_threshold(self) -> float | None:
        if self.unknown is None:
            return None
        held_out, first = leave_one_out(self, MOST_HELD_OUT), len(self.base)
        familiarity = held_out.cosines[:, first:].amax(1).numpy() if len(held_out.cosines) else np.empty(0)
        category = held_out.category.numpy() - first
        return self.unknown.threshold([
            (len(rows), familiarity[category == place]) for place, rows in enumerate(self.support.values())
        ])  # fmt: skip

    def set_unknown(self, unknown: Unknown | None) -> None:
        """What decides between known and unknown; None: everything is known."""
        self.unknown = unknown
        self._forget_rows()

    def set_unknown_at(self, threshold: float) -> None:
        """The familiarity, a cosine, below which an image is unknown; -1: none is."""
        self.set_unknown((self.unknown or Unknown(PHOTOS)).set_at(threshold))

    def predict(self, activations: ArrayLike | Tensor, top: int = 5) -> list[list[tuple[str, float]]]:
        """The most probable categories of each row of (n, dim), with their probabilities: one of them in any case.
        Whether a row is of any known category is what `is_known` says; `predict_images` asks both."""
        if top < 1:
            raise InvalidInputError(f"top must be at least 1, got {top}")
        self._require_categories()
        names = self.categories
        return [[(names[place], share) for place, share in row] for row in ranked(self.scores(activations), top)]

    def typical_shots(self) -> int:
        """The median number of examples of the novel categories; 1 where there is none."""
        return median_high(map(len, self.support.values())) if self.support else 1

    def set_constant(self, novel_bias: float, aggregate: Aggregate | None = None) -> None:
        """Of the moment: what is learnt later may change it."""
        if not math.isfinite(novel_bias):
            raise InvalidInputError(f"the novel bias must be a finite number, got {novel_bias}")
        if aggregate not in (None, "max", "mean"):
            raise InvalidInputError(f"aggregate must be max or mean, got {aggregate!r}")
        self.novel_bias, self.aggregate = float(novel_bias), aggregate or self.aggregate
        self._forget_rows()

    def _forget_rows(self) -> None:
        for name in ("fitted", "rows", "_fitted_threshold"):
            self.__dict__.pop(name, None)

    def _require_categories(self) -> None:
        if not self.categories:
            raise InvalidInputError("the classifier knows no category yet; teach it one first")

    def _require_novel(self, name: str) -> None:
        if name in self.base:
            raise InvalidInputError(f"{name!r} is a base category; only categories that were added can be changed")
        if name not in self.support:
            known = ", ".join(list(self.support)[:5]) or "none was added yet"
            raise InvalidInputError(f"no added category is named {name!r}; there are: {known}")

"""A classifier that learns a category from its first example: a rule turns activations into rows of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.classifier.linear_rows import Rows, each_once, first_equal
from predictor.phi.network import Phi
from predictor.phi.recogniser import Aggregate
from predictor.phi.rule import Centred, PhiRule, Rule
from predictor.protocol.head import Head


class Classifier:
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
    ) -> None:
        self.rule: Rule = PhiRule(rule) if isinstance(rule, Phi) else rule
        self.base, dim = tuple(base), self.rule.dim
        weight = torch.empty(0, dim) if base_parameters is None else base_parameters.detach()
        bias = torch.zeros(len(self.base)) if base_bias is None else base_bias.detach()
        for what, given, wanted in (("parameters", weight, (len(self.base), dim)), ("biases", bias, (len(self.base),))):
            if given.shape != wanted:
                raise InvalidInputError(f"base {what} must be {wanted}, got {tuple(given.shape)}")
        self.base_parameters, self.base_bias = weight, bias
        self.about = dict(about or {})
        self.support: dict[str, Tensor] = {}  # novel category -> its examples (n, dim)
        self.aggregate: Aggregate = aggregate
        self.calibrate(novel_bias, aggregate)

    @classmethod
    def from_means(cls, phi: Phi, base: Sequence[str], means: Tensor, **options: Any) -> Self:
        """phi of the means (n_base, dim) of every base category."""
        rule = PhiRule(phi)
        return cls(rule, base, each_once(rule, means)[0], **options)

    @classmethod
    def from_head(cls, head: Head, base: Sequence[str], centre: Tensor, scale: float = 1.0, **options: Any) -> Self:
        """The network's own classifier as the base, and examples about the centre (dim,) beside it."""
        options = {"aggregate": "mean", **options}
        return cls(Centred(centre, scale), base, head.weight, base_bias=head.bias, **options)

    @classmethod
    def alone(cls, centre: Tensor, scale: float = 1.0, **options: Any) -> Self:
        """Without any base: it will know what it is taught, about the centre (dim,)."""
        return cls(Centred(centre, scale), **{"aggregate": "mean", **options})

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
        parsed = {name: self._parse_examples(name, given) for name, given in examples.items()}
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
        self.support = {new if key == name else key: rows for key, rows in self.support.items()}

    @cached_property
    @torch.no_grad()
    def rows(self) -> Rows:
        """Predicted anew after every change."""
        parts = [examples if self.aggregate == "max" else examples.mean(0, keepdim=True)
                 for examples in self.support.values()]  # fmt: skip
        counts = torch.tensor([1] * len(self.base) + [len(part) for part in parts], dtype=torch.int64)
        statistics = torch.cat(parts) if parts else torch.empty(0, self.dim)
        novel, offsets = each_once(self.rule, statistics)
        category = torch.repeat_interleave(torch.arange(len(counts)), counts)
        weight = torch.cat([self.base_parameters, novel])
        bias = torch.cat([self.base_bias, offsets + self.novel_bias])
        return Rows(weight, bias, category, first_equal(weight))

    @torch.no_grad()
    def scores(self, activations: ArrayLike | Tensor) -> Tensor:
        """(n, dim) -> (n, n_categories) before the softmax."""
        queries = self.rule.read(self._parse("queries", activations))
        return self.rows.highest(self.rows.scores(queries), len(self.categories))

    def predict(self, activations: ArrayLike | Tensor, top: int = 5) -> list[list[tuple[str, float]]]:
        """The most probable categories of each row of (n, dim), with their probabilities."""
        if top < 1:
            raise InvalidInputError(f"top must be at least 1, got {top}")
        if not self.categories:
            raise InvalidInputError("the classifier knows no category yet; teach it one first")
        scores = self.scores(activations)
        # stable: of equal scores the lower category comes first
        places = scores.argsort(dim=1, descending=True, stable=True)
        values, names = scores.softmax(1).gather(1, places), self.categories
        return [
            [(names[place], value) for place, value in zip(row_places, row_values, strict=True)]
            for row_places, row_values in zip(places[:, :top].tolist(), values[:, :top].tolist(), strict=True)
        ]

    def typical_shots(self) -> int:
        """The median number of examples of the novel categories; 1 where there is none."""
        counts = sorted(len(examples) for examples in self.support.values())
        return counts[len(counts) // 2] if counts else 1

    def calibrate(self, novel_bias: float, aggregate: Aggregate | None = None) -> None:
        """Set the constant on the novel scores, and how several examples of a category are put together."""
        if not math.isfinite(novel_bias):
            raise InvalidInputError(f"the novel bias must be a finite number, got {novel_bias}")
        if aggregate not in (None, "max", "mean"):
            raise InvalidInputError(f"aggregate must be max or mean, got {aggregate!r}")
        self.novel_bias, self.aggregate = float(novel_bias), aggregate or self.aggregate
        self._forget_rows()

    def _forget_rows(self) -> None:
        self.__dict__.pop("rows", None)

    def _require_novel(self, name: str) -> None:
        if name in self.base:
            raise InvalidInputError(f"{name!r} is a base category; only categories that were added can be changed")
        if name not in self.support:
            known = ", ".join(list(self.support)[:5]) or "none was added yet"
            raise InvalidInputError(f"no added category is named {name!r}; there are: {known}")

    def _parse_examples(self, name: str, values: ArrayLike | Tensor) -> Tensor:
        """Memory of its own: the caller may go on with theirs."""
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"a category needs a name, got {name!r}")
        examples = self._parse(f"category {name!r}", values)
        if not len(examples):
            raise InvalidInputError(f"category {name!r} has no support; give at least one example")
        return examples.clone()

    def _parse(self, what: str, values: ArrayLike | Tensor) -> Tensor:
        try:
            with np.errstate(over="ignore"):  # an infinity is refused below
                tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, np.float32))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"{what}: expected activations (n, {self.dim}), got no array: {error}") from None
        tensor = tensor.detach().float()
        tensor = tensor[None] if tensor.ndim == 1 else tensor
        if tensor.ndim != 2 or tensor.shape[1] != self.dim:
            raise InvalidInputError(f"{what}: expected activations (n, {self.dim}), got {tuple(tensor.shape)}")
        if not torch.isfinite(tensor).all():
            raise InvalidInputError(f"{what}: activations must be finite, got a NaN or an infinity")
        return tensor

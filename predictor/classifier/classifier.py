"""A classifier that learns a category from its first example: phi turns activations into rows of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from actstore.errors import InvalidInputError
from predictor.phi.network import Phi
from predictor.phi.recogniser import Aggregate


@dataclass(frozen=True)
class Rows:
    """The classifier as one linear layer: row i scores category `category[i]`, the highest row counts.

    weight: (rows, dim). bias: (rows,). category: (rows,) positions among the categories, ascending. same_as: (rows,)
    the first row with the same weight, None where all differ: its product counts for all of them, as a product may
    round equal rows differently, by where they stand.
    """

    weight: Tensor
    bias: Tensor
    category: Tensor
    same_as: Tensor | None = None


class Classifier:
    """Base categories with phi(mean) as parameters, and novel ones learnt from a few examples each.

    base_parameters: (n_base, dim). novel_bias: added to every novel score. aggregate: `max` makes a row of every
    example and the highest counts (the paper's "Inference"); `mean` makes one of their mean. about: where the
    activations must come from, kept in the file.
    """

    def __init__(
        self,
        phi: Phi,
        base: Sequence[str],
        base_parameters: Tensor,
        aggregate: Aggregate = "max",
        novel_bias: float = 0.0,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if base_parameters.shape != (len(base), phi.spec.dim):
            raise InvalidInputError(
                f"base parameters must be ({len(base)}, {phi.spec.dim}), got {tuple(base_parameters.shape)}"
            )
        self.phi, self.base, self.base_parameters = phi, tuple(base), base_parameters.detach()
        self.about = dict(about or {})
        self.support: dict[str, Tensor] = {}  # novel category -> its examples (n, dim)
        self.aggregate: Aggregate = aggregate
        self.calibrate(novel_bias, aggregate)

    @classmethod
    def from_means(cls, phi: Phi, base: Sequence[str], means: Tensor, **options: Any) -> Self:
        """means: (n_base, dim) mean activation of every base category."""
        return cls(phi, base, _each_once(phi, means), **options)

    @property
    def dim(self) -> int:
        return self.phi.spec.dim

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
        counts = torch.tensor([1] * len(self.base) + [len(part) for part in parts])
        novel = _each_once(self.phi, torch.cat(parts)) if parts else torch.empty(0, self.dim)
        bias = torch.zeros(len(self.base) + len(novel))
        bias[len(self.base) :] = self.novel_bias
        category = torch.repeat_interleave(torch.arange(len(counts)), counts)
        weight = torch.cat([self.base_parameters, novel])
        return Rows(weight, bias, category, _first_equal(weight))

    @torch.no_grad()
    def scores(self, activations: ArrayLike | Tensor) -> Tensor:
        """(n, dim) -> (n, n_categories) before the softmax."""
        rows = self.rows
        queries = self.phi.scale_queries(self._parse("queries", activations))
        if rows.same_as is None:
            scores = torch.addmm(rows.bias, queries, rows.weight.T)  # (n, rows)
        else:
            scores = torch.mm(queries, rows.weight.T)[:, rows.same_as] + rows.bias
        if len(rows.category) == len(self.categories):
            return scores
        best = scores.new_full((len(scores), len(self.categories)), -torch.inf)
        return best.scatter_reduce_(1, rows.category.expand_as(scores), scores, "amax")

    def predict(self, activations: ArrayLike | Tensor, top: int = 5) -> list[list[tuple[str, float]]]:
        """The most probable categories of each row of (n, dim), with their probabilities."""
        if top < 1:
            raise InvalidInputError(f"top must be at least 1, got {top}")
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


def _each_once(phi: Phi, statistics: Tensor) -> Tensor:
    """phi of (n, dim), where equal statistics have equal parameters to the last bit."""
    same_as = _first_equal(statistics)
    if same_as is None:
        parameters: Tensor = phi(statistics)
        return parameters
    first, place = np.unique(same_as.numpy(), return_inverse=True)
    repeated: Tensor = phi(statistics[torch.from_numpy(first)])[torch.from_numpy(place)]
    return repeated


def _first_equal(rows: Tensor) -> Tensor | None:
    """(n, dim) float32 -> (n,) the first row with the bits of each; None where no two are equal."""
    content = rows.detach().cpu().contiguous().numpy()
    sums = content.view(np.int32).sum(axis=1, dtype=np.int64)  # exact in any order; nearly always they differ
    if len(np.unique(sums)) == len(sums):
        return None
    first: dict[bytes, int] = {}
    return torch.tensor([first.setdefault(row.tobytes(), place) for place, row in enumerate(content)])

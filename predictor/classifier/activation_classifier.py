"""A classifier of activations: a rule turns examples into rows of parameters, and rows into scores; it learns
categories, and keeps the balance between known and taught ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median_high
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.spec import is_unicode
from predictor.classifier import scoring
from predictor.classifier.presentation import forget_display
from predictor.classifier.unknown import (
    PHOTOS,
    PHOTOS_BEFORE_BACKGROUND,
    Background,
    FittedBackground,
    Unknown,
    refuse_reserved,
)
from predictor.phi.network import Phi, unit
from predictor.phi.rule import Centred, LinearRows, OwnCentre, PhiRule, Rule, first_equal
from predictor.protocol.calibration import nearest_shots
from predictor.protocol.head import Head
from predictor.protocol.method import Aggregate

MOST_HELD_OUT = 30  # examples of a category that the threshold of unknown is fitted on
KEEPS_KNOWN = "beside_known"  # in `about`: the constant is fitted anew with all that is learnt, until one is chosen


class ActivationClassifier:
    """A classifier of activations, which knows base categories and learns novel ones from a few examples each.

    Args:
        rule: how examples become parameters, or a phi.
        base: names of the base categories.
        base_parameters: (n_base, dim) their parameters.
        aggregate: "max" makes parameters of every example and takes the highest score, as in the paper; "mean" makes
            them of the mean of the examples.
        novel_bias: the constant, which is added to every novel score.
        about: where activations must come from; it is kept in the file.
        base_bias: (n_base,) the biases of the base categories, by default 0.
        unknown: how the threshold below which an image is unknown is fitted.
        background: what else the network knows, by which photos of anything else are recognised as unknown; without it
            their cosines alone decide.
    """

    calibrations: Callable[[int], Mapping[int, tuple[Aggregate, float]]] | None = None

    def __init__(
        self, rule: Rule | Phi | None = None, base: Sequence[str] = (), base_parameters: Tensor | None = None,
        aggregate: Aggregate = "max", novel_bias: float = 0.0, about: Mapping[str, Any] | None = None,
        base_bias: Tensor | None = None, unknown: Unknown | None = None, background: Background | None = None,
    ) -> None:  # fmt: skip
        if rule is None:
            raise InvalidInputError("make a classifier with Classifier.from_backbone() or Classifier.from_phi(phi)")
        self.rule: Rule = PhiRule(rule) if isinstance(rule, Phi) else rule
        self.base, dim = tuple(base), self.rule.dim
        weight = torch.empty(0, dim) if base_parameters is None else base_parameters.detach()
        bias = torch.zeros(len(self.base)) if base_bias is None else base_bias.detach()
        for what, tensor, shape in (("parameters", weight, (len(self.base), dim)), ("biases", bias, (len(self.base),))):
            if tensor.shape != shape:
                raise InvalidInputError(f"base {what} must be {shape}, got {tuple(tensor.shape)}")
        self.base_parameters, self.base_bias = weight, bias
        self.about, self.unknown, self.background = dict(about or {}), unknown, background
        self.support: dict[str, Tensor] = {}  # novel category -> its examples (n, dim)
        self.aggregate: Aggregate = aggregate
        self.set_constant(novel_bias, aggregate)

    @classmethod
    def from_means(cls, phi: Phi, base: Sequence[str], means: Tensor, **options: Any) -> Self:
        """Make a classifier that knows base categories by phi of their means.

        Args:
            phi: the network phi.
            base: names of the base categories.
            means: (n_base, dim) the mean activation of each.
            **options: as for the class.
        """
        rule = PhiRule(phi)
        return cls(rule, base, rule.rows(means).weight, **options)

    @classmethod
    def from_head(cls, head: Head, base: Sequence[str], centre: Tensor | None = None, **options: Any) -> Self:
        """Make a classifier that knows base categories by the network's own classifier.

        Args:
            head: the network's own classifier.
            base: names of its rows.
            centre: (dim,) the centre of the base categories' means, from which directions of examples are measured;
                without one the examples give a centre.
            **options: as for the class.
        """
        rule = OwnCentre(head.dim) if centre is None else Centred(centre)
        options = {"aggregate": "mean", **options}
        return cls(rule, base, head.weight, base_bias=head.bias, **options)

    @classmethod
    def alone(cls, dim: int, background: Background | None = None, **options: Any) -> Self:
        """Make a classifier that knows nothing but what it will be taught.

        Args:
            dim: number of values in an activation.
            background: what else the network knows, as for the class.
            **options: as for the class.

        Examples:
            >>> alone = predictor.Classifier.alone(8)
            >>> alone.adapt_all({"ant": train.of_class("ant"), "bee": train.of_class("bee")})
            >>> alone.predict(val[:1], top=1)[0][0][0]
            'ant'
        """
        prior = PHOTOS if background is None else PHOTOS_BEFORE_BACKGROUND
        defaults = {"aggregate": "mean", "unknown": Unknown(prior), "background": background}
        return cls(OwnCentre(dim), **{**defaults, **options})

    @property
    def phi(self) -> Phi:
        """The network phi; an error where the classifier was made without one."""
        if not isinstance(self.rule, PhiRule):
            raise InvalidInputError("this classifier was made without a phi; choose one that `ppa adapt --phi` made")
        return self.rule.phi

    @property
    def dim(self) -> int:
        """The number of values in an activation."""
        return self.rule.dim

    @property
    def categories(self) -> tuple[str, ...]:
        """The names of the base categories, then of the taught ones in their order; scores have this order."""
        return (*self.base, *self.support)

    @cached_property
    def fitted(self) -> Rule:
        """The rule for what was taught; anew after every change."""
        return self.rule.fitted(list(self.support.values()))

    @cached_property
    @torch.no_grad()
    def rows(self) -> LinearRows:
        """The parameters of all categories, predicted anew after every change."""
        novel = self.rows_of(list(self.support.values()))
        category = torch.cat([torch.arange(len(self.base)), novel.category + len(self.base)])
        weight = torch.cat([self.base_parameters, novel.weight])
        return LinearRows(weight, torch.cat([self.base_bias, novel.bias]), category, first_equal(weight))

    @torch.no_grad()
    def rows_of(self, support: Sequence[Tensor]) -> LinearRows:
        """support: for each category its examples (n, dim). Their parameters; categories are numbered from 0."""
        parts = [self.rule.statistics(examples, self.aggregate) for examples in support]
        counts = torch.tensor([len(part) for part in parts], dtype=torch.int64)
        return self.fitted.rows(torch.cat([*parts, torch.empty(0, self.dim)]), counts, self.novel_bias)

    @torch.no_grad()
    def scores(self, activations: ArrayLike | Tensor) -> Tensor:
        """Score activations for every category.

        Args:
            activations: (n, dim).

        Returns:
            (n, categories) scores, before the softmax.

        Examples:
            >>> classifier.scores(val[:5]).shape
            torch.Size([5, 3])
        """
        queries = self.fitted.read(scoring.parse_activations("queries", activations, self.dim))
        return self.rows.highest(self.rows.scores(queries), len(self.categories))

    @torch.no_grad()
    def centred_unit_vectors(self, activations: ArrayLike | Tensor) -> Tensor:
        """(n, dim) -> (n, dim), measured from the centre and scaled to length 1."""
        point = self.fitted.directions(torch.empty(0, self.dim))[1]
        return unit(self.fitted.read(scoring.parse_activations("queries", activations, self.dim)) - point)

    @torch.no_grad()
    def cosines(self, activations: ArrayLike | Tensor) -> Tensor:
        """(n, dim) -> (n, categories): with the parameters of each category, about the centre."""
        first = len(self.base)
        directions = torch.cat([self._base_directions, self.fitted.directions(self.rows.weight[first:])[0]])
        return self.rows.highest(self.centred_unit_vectors(activations) @ directions.T, len(self.categories))

    @cached_property
    def _base_directions(self) -> Tensor:
        """(n_base, dim) of unit length: whatever is taught, they stay the same."""
        return self.rule.base_directions(self.base_parameters)

    def familiarity(self, activations: ArrayLike | Tensor, only_mine: bool = False) -> Tensor:
        """Measure how alike the most alike known category is, from -1 to 1; what is below `threshold` is unknown.

        It is the highest cosine with a category; with a background it also depends on what else the network sees.

        Args:
            activations: (n, dim).
            only_mine: with taught categories alone.

        Returns:
            (n,).
        """
        self._require_categories()
        if self.before_background is not None:
            return self.before_background.alike(scoring.parse_activations("queries", activations, self.dim)).amax(1)
        cosines, first = self.cosines(activations), len(self.base)
        if only_mine and self.support:
            return cosines[:, first:].amax(1)
        cosines[:, :first] += self.base_shift
        return cosines.amax(1)

    @cached_property
    def before_background(self) -> FittedBackground | None:
        """The taught categories before the network's others; anew after every change."""
        if self.background is None or self.base or not self.support:
            return None
        return self.background.fitted(list(self.support.values()))

    @property
    def base_shift(self) -> float:
        """Added to cosines with the base, so that what is fitted to taught categories is their threshold too."""
        own, base = self._fitted_threshold, None if self.unknown is None else self.unknown.base_threshold
        return 0.0 if own is None or base is None else own - base

    def is_known(self, activations: ArrayLike | Tensor, only_mine: bool = False) -> Tensor:
        """Say which activations belong to a known category.

        Args:
            activations: (n, dim).
            only_mine: to a taught category.

        Returns:
            (n,) truth values; all are true where there is no threshold.
        """
        return self.familiarity(activations, only_mine) >= (-torch.inf if self.threshold is None else self.threshold)

    @property
    def threshold(self) -> float | None:
        """The familiarity below which an image is unknown; None where nothing is ever unknown."""
        return self._fitted_threshold if self.unknown is None or self.unknown.at is None else self.unknown.at

    @cached_property
    def _fitted_threshold(self) -> float | None:
        if self.unknown is None:
            return None
        familiarity = [own.numpy() for own in self.left_out_familiarity(MOST_HELD_OUT)]
        counts = map(len, self.support.values())
        return self.unknown.threshold(list(zip(counts, familiarity, strict=True)))

    def left_out_familiarity(self, most: int | None = None) -> list[Tensor]:
        """Of each taught category (n,): how familiar its first `most` examples are, each left out; empty of one."""
        if self.before_background is not None:
            return self.before_background.left_out(most)
        held_out, first = scoring.leave_one_out(self, most), len(self.base)
        return [held_out.cosines[held_out.category == first + place, first:].amax(1)
                if len(rows) > 1 else torch.empty(0) for place, rows in enumerate(self.support.values())]  # fmt: skip

    def set_unknown(self, unknown: Unknown | None) -> None:
        """unknown: how the threshold is fitted; None makes everything known."""
        self.unknown = unknown
        self._forget_rows()

    def set_unknown_at(self, threshold: float) -> None:
        """Set the threshold of `unknown` by hand.

        Args:
            threshold: from -1 to 1; an image whose familiarity is below it is unknown, and with -1 none is.
        """
        self.set_unknown((self.unknown or Unknown(PHOTOS)).set_at(threshold))

    def predict(self, activations: ArrayLike | Tensor, top: int = 5) -> list[list[tuple[str, float]]]:
        """Give the most probable categories of activations.

        It always names a category. `is_known` says whether it fits; `predict_images` does both.

        Args:
            activations: (n, dim).
            top: how many categories to name.

        Returns:
            For each row a list of categories with their probabilities, best first.

        Examples:
            >>> classifier.predict(val[:1], top=1)[0][0][0]
            'ant'
        """
        if top < 1:
            raise InvalidInputError(f"top must be at least 1, got {top}")
        self._require_categories()
        names, ranked = self.categories, scoring.ranked(self.scores(activations), top)
        return [[(names[place], share) for place, share in row] for row in ranked]

    def adapt(self, name: str, activations: ArrayLike | Tensor, extend: bool = False) -> None:
        """Learn a category from activations of its examples.

        Args:
            name: the category.
            activations: (n, dim), or (dim,) for a single example.
            extend: add examples to a category that exists.

        Raises:
            InvalidInputError: the category exists already, or activations have another length.

        Examples:
            >>> classifier.adapt("dog", train.of_class("dog")[0])
            >>> classifier.adapt("dog", train.of_class("dog")[1:3], extend=True)
        """
        self.adapt_all({name: activations}, extend)

    def adapt_all(
        self, examples: Mapping[str, ArrayLike | Tensor], extend: bool = False, aggregate: Aggregate | None = None
    ) -> None:
        """Learn several categories at once; either all of them are added or none.

        The constant between base and taught categories follows what was calibrated; see `calibrate`.

        Args:
            examples: for each category its activations (n, dim); the numbers of examples may differ.
            extend: add examples to categories that exist.
            aggregate: how examples are combined, "max" or "mean"; by default as calibrated.

        Raises:
            InvalidInputError: a category exists already, or activations have another length.

        Examples:
            >>> classifier.adapt_all({"dog": train.of_class("dog"), "eel": val[:1]})
            >>> classifier.categories
            ('ant', 'bee', 'cat', 'dog', 'eel')
        """
        require_aggregate(aggregate)
        for name in examples:
            if isinstance(name, str) and name not in self.support:
                refuse_reserved(name)
        self.restore(examples, extend)
        self.balance(aggregate)

    def remove(self, name: str) -> None:
        """Forget a category that was taught.

        Args:
            name: the category.

        Raises:
            InvalidInputError: it was not taught.
        """
        self._require_novel(name)
        del self.support[name]
        forget_display(self, name)
        self._forget_rows()

    def rename(self, name: str, new: str) -> None:
        """Give a taught category another name; it keeps its examples and the name that people are shown.

        Args:
            name: the category.
            new: its new name.

        Raises:
            InvalidInputError: it was not taught, or the new name is taken.
        """
        self._require_novel(name)
        if not isinstance(new, str) or not new or new in self.categories:
            raise InvalidInputError(f"cannot rename {name!r}: {new!r} is taken or no name")
        if not is_unicode(new):
            raise InvalidInputError(f"cannot rename {name!r}: {new!r} is not valid Unicode text")
        refuse_reserved(new)
        self.support = {new if key == name else key: rows for key, rows in self.support.items()}
        forget_display(self, name, new)

    def calibrate(self, novel_bias: float, aggregate: Aggregate | None = None) -> None:
        """Choose the constant on the novel scores by hand; what is taught later leaves it as it is.

        Args:
            novel_bias: the constant.
            aggregate: how examples are combined, "max" or "mean"; by default as before.
        """
        self.set_constant(novel_bias, aggregate)
        self.calibrations = None
        self.about.pop(KEEPS_KNOWN, None)

    def balance(self, aggregate: Aggregate | None = None) -> None:
        """Set the constant as it was calibrated for the present number of examples, or beside what the network knows.

        Without a calibration the constant stays as it is.

        Args:
            aggregate: how examples are combined, "max" or "mean"; by default as calibrated.
        """
        shots = self.typical_shots()
        fits = {} if self.calibrations is None else self.calibrations(shots)
        if fits:
            found, bias = fits[nearest_shots(fits, shots)]
            self.set_constant(bias, aggregate or found)
        elif aggregate is not None:
            self.set_constant(self.novel_bias, aggregate)
        if self.about.get(KEEPS_KNOWN) and self.support:
            self.set_constant(scoring.bias_beside_known(self))

    def set_constant(self, novel_bias: float, aggregate: Aggregate | None = None) -> None:
        """Set the constant for the moment; what is taught later may change it.

        Args:
            novel_bias: the constant, which is added to every novel score.
            aggregate: how examples are combined, "max" or "mean"; by default as before.
        """
        if not math.isfinite(novel_bias):
            raise InvalidInputError(f"the novel bias must be a finite number, got {novel_bias}")
        require_aggregate(aggregate)
        self.novel_bias, self.aggregate = float(novel_bias), aggregate or self.aggregate
        self._forget_rows()

    def typical_shots(self) -> int:
        """The median number of examples of the taught categories, 1 where there is none."""
        return median_high(map(len, self.support.values())) if self.support else 1

    def restore(self, examples: Mapping[str, ArrayLike | Tensor], extend: bool = False) -> None:
        """Learn categories as they are in a file, whose names are not checked again."""
        parsed = {name: scoring.parse_examples(name, given, self.dim) for name, given in examples.items()}
        self._require_new(parsed, extend)
        for name, rows in parsed.items():
            known = self.support.get(name)
            self.support[name] = rows if known is None else torch.cat([known, rows])
        self._forget_rows()

    def _forget_rows(self) -> None:
        for name in ("fitted", "rows", "before_background", "_fitted_threshold"):
            self.__dict__.pop(name, None)

    def _require_categories(self) -> None:
        if not self.categories:
            raise InvalidInputError("the classifier knows no category yet; teach it one first")

    def _require_new(self, names: Iterable[str], extend: bool) -> None:
        for name in names:
            if name in self.base:
                raise InvalidInputError(f"{name!r} is a base category already; give the new category another name")
            if name in self.support and not extend:
                raise InvalidInputError(
                    f"category {name!r} exists already; extend it with more examples, remove it first, or choose "
                    "another name"
                )

    def _require_novel(self, name: str) -> None:
        if name in self.base:
            raise InvalidInputError(f"{name!r} is a base category; only categories that were added can be changed")
        if name not in self.support:
            known = ", ".join(list(self.support)[:5]) or "none was added yet"
            raise InvalidInputError(f"no added category is named {name!r}; there are: {known}")


def require_aggregate(aggregate: str | None) -> None:
    if aggregate not in (None, "max", "mean"):
        raise InvalidInputError(f"aggregate must be max or mean, got {aggregate!r}")

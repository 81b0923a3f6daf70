"""Base categories that stand in for novel ones, so that a constant on novel scores is fitted without any of those.

In each of many tasks some base categories are learnt from a few examples, beside all that is known of the others. But
the network was trained to tell these stand-ins apart, so they are easier than what is novel: the directions that its
classifier uses for them are taken out of every activation of the task first. And it was trained on their very images,
so rows that it was not trained on are asked about where a category has some (`HeldOut`), and shown where it has enough.
Training rows that are asked about are left out of what is known: a query is never compared with itself. Where the split
has validation categories, which the network never saw, those are used instead, as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.streams.sampling import STAND_INS, Stream, generator
from predictor.protocol.base_categories import ActivationTransform, BaseCategories, identity
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.method import Method
from predictor.protocol.outcome import BaseSide, Outcome, Queries
from predictor.protocol.rows import Rows, class_means, is_signed, join_groups, rows_of, take_float

MOST_QUERIES = 4000  # of the base and of the stand-ins in each task
DISCRIMINANT_ROWS = 20_000  # a sample: ten times the dimension of a ResNet-50
HELD_OUT_SHARE = 0.2  # of the base rows of the split that is tested on
LEFT_OUT_SHARE = 0.2  # of the training rows of a base category that has no held-out ones


@dataclass(frozen=True)
class HeldOut:
    """Rows of base categories that the network was not trained on: a share of each, of a split which is tested on.
    Whoever fits on them leaves them out of the test. first: of so many rows, those that the split had before an append;
    None: of all."""

    split: Split
    share: float = HELD_OUT_SHARE
    first: int | None = None

    def of_class(self, name: str) -> Rows:
        index = self.split.class_index
        label = index.position(name)
        rows = index.rows(label)
        rows = rows if self.first is None else rows[rows < self.first]
        order = generator(0, label, Stream.UNTESTED_ROWS).permutation(len(rows))
        return np.sort(rows[order[: round(self.share * len(rows))]])

    def rows(self, names: Sequence[str]) -> Rows:
        return np.concatenate([*(self.of_class(name) for name in names), np.empty(0, np.int64)])


@dataclass(frozen=True)
class StandInTask:
    """base: the categories that keep what is known of them. examples: (n_stand_in, most_shots, dim). All activations
    are transformed alike. is_even: (n,) whether the row that a query was made of has an even number: halves which
    share no row, so that what is fitted on one can be tried on the other."""

    base: BaseCategories
    stand_ins: tuple[str, ...]
    examples: Tensor
    queries: Queries
    is_even: Tensor

    def outcomes(self, method: Method, shots: Sequence[int]) -> list[Outcome]:
        """For each number of shots, by a method that was prepared for `base`."""
        side = BaseSide.of(method.table_base_scores(self.queries), self.queries)
        asked = self.queries.activations
        return [Outcome.of(side, method.novel_scores(asked, self.examples[:, :count]), self.queries) for count in shots]


@dataclass(frozen=True)
class StandInSource:
    """Where the rows of tasks come from. head: w_large^pt (n_base, dim) in the order of the base categories; without it
    linear discriminants are used. held_out: rows that the network was not trained on."""

    train: Split
    categories: CategorySplit
    most_shots: int
    head: Tensor | None = None
    held_out: HeldOut | None = None

    def tasks(self, count: int = 20, seed: int = 0) -> Iterator[StandInTask]:
        if count < 1:
            raise InvalidInputError(f"calibration needs at least one task, got {count}")
        directions = None
        if not self.categories.validation:
            directions = self.head - self.head.mean(0) if self.head is not None else None
            directions = discriminants(self.train, self.categories.base) if directions is None else directions
        for number in range(count):
            stand_ins = choose_stand_ins(self.categories, seed, number)
            transform = remove_class_directions(self.train, self.categories, stand_ins, directions)
            yield self._task(stand_ins, transform, seed, number)

    @property
    def short_of_rows(self) -> list[str]:
        """Base categories with too few held-out rows to be shown examples of and asked about."""
        needed = 1 if self.categories.validation else self.most_shots + 1
        held_out = self.held_out
        return [] if held_out is None else [n for n in self.categories.base if len(held_out.of_class(n)) < needed]

    def _task(self, stand_ins: tuple[str, ...], transform: ActivationTransform, seed: int, number: int) -> StandInTask:
        random = generator(seed, number, Stream.STAND_IN_EXAMPLES)
        novel, shown = [], []
        for name in stand_ins:
            taught, asked = self._stand_in_rows(name, random)
            shown.append(take_float(*taught))
            novel.append(asked)
        others = tuple(name for name in self.categories.base if name not in set(stand_ins))
        base = [self._base_rows(name, random) for name in others]
        base_rows, base_activations, base_targets, left_out = self._gather(base)
        novel_rows, novel_activations, novel_targets, _ = self._gather(novel)
        if not len(novel_rows):
            raise InvalidInputError(
                f"{self.most_shots} shots leave no row of the stand-ins to measure on; calibrate with fewer --shots"
            )
        activations = transform(torch.cat([base_activations, novel_activations]))
        examples = transform(torch.cat(shown)).reshape(len(stand_ins), self.most_shots, -1)
        known = BaseCategories.of_split(self.train, others, transform, left_out)
        is_even = torch.from_numpy(np.concatenate([base_rows, novel_rows]) % 2 == 0)
        return StandInTask(known, stand_ins, examples, Queries(activations, base_targets, novel_targets), is_even)

    def _base_rows(self, name: str, random: np.random.Generator) -> tuple[Split, Rows]:
        """What is asked about a base category: held-out rows, or a share of the training rows that leaves some."""
        if self.held_out is not None and len(rows := self.held_out.of_class(name)):
            return self.held_out.split, rows
        index = self.train.class_index
        rows = index.rows(index.position(name))
        count = min(len(rows) - 1, max(1, round(LEFT_OUT_SHARE * len(rows))))
        return self.train, np.sort(random.permutation(rows)[:count])

    def _stand_in_rows(self, name: str, random: np.random.Generator) -> tuple[tuple[Split, Rows], tuple[Split, Rows]]:
        """Examples of a stand-in, and what is asked about it: held-out rows where it has enough of them, else examples
        from the training rows; only without any held-out row both. Of validation categories no row was trained on."""
        index, count = self.train.class_index, self.most_shots
        held = np.empty(0, np.int64)
        if self.held_out is not None and not self.categories.validation:
            held = random.permutation(self.held_out.of_class(name))
            if len(held) > count:
                return (self.held_out.split, held[:count]), (self.held_out.split, np.sort(held[count:]))
        rows = random.permutation(index.rows(index.position(name)))
        if len(rows) < count:
            raise InvalidInputError(
                f"class {name!r} has {len(rows):,} rows, too few for {count} shots; use fewer --shots"
            )
        examples = self.train, rows[:count]
        if self.held_out is not None and len(held):
            return examples, (self.held_out.split, np.sort(held))
        return examples, (self.train, np.sort(rows[count:]))

    def _gather(self, groups: Sequence[tuple[Split, Rows]]) -> tuple[Rows, Tensor, Tensor, Rows]:
        """Rows (at most MOST_QUERIES), activations and targets of groups from two splits; and the training rows."""
        rows, targets = join_groups([rows for _, rows in groups], MOST_QUERIES)
        in_train = np.array([split is self.train for split, _ in groups], bool)[targets]
        order = np.argsort(in_train, kind="stable")  # held-out rows first
        rows, targets, in_train = rows[order], targets[order], in_train[order]
        parts = [take_float(self.train, rows[in_train])]
        if self.held_out is not None:
            parts.insert(0, take_float(self.held_out.split, rows[~in_train]))
        return rows, torch.cat(parts), torch.from_numpy(targets), rows[in_train]

    def describe(self, tasks: int) -> str:
        """What constants were fitted on, for a column of the table."""
        where = "training rows, which are left out of what is known"
        if self.held_out is not None:
            where = f"{self.held_out.share:.0%} of the base rows of {self.held_out.split.name}"
            if few := self.short_of_rows:
                where += f" (examples of {len(few):,} categories with too few there, such as {few[0]}: training rows)"
        if self.categories.validation:
            return f"{len(self.categories.validation)} validation categories, {tasks} draws; base queries: {where}"
        part = "linear discriminants" if self.head is None else "the classifier's rows"
        return f"{tasks} tasks of base categories as stand-ins, {part} taken out; {where}"


def choose_stand_ins(categories: CategorySplit, seed: int, task: int) -> tuple[str, ...]:
    """All validation categories, or base ones in the proportion that the novel ones have among all."""
    if categories.validation:
        return categories.validation
    share = len(categories.novel) / (len(categories.base) + len(categories.novel)) if categories.novel else 0.1
    count = max(2, round(share * len(categories.base)))
    if count >= len(categories.base):
        raise InvalidInputError(f"{len(categories.base)} base categories are too few to calibrate on; use --novel-bias")
    chosen = generator(seed, task, stream=STAND_INS).choice(len(categories.base), count, replace=False)
    return tuple(categories.base[place] for place in np.sort(chosen))


def remove_class_directions(
    train: Split, categories: CategorySplit, stand_ins: tuple[str, ...], directions: Tensor | None
) -> ActivationTransform:
    """What takes the stand-ins' directions out of activations; nothing for validation categories, which are novel."""
    if directions is None:
        return identity
    places = [categories.base.index(name) for name in stand_ins]
    basis = torch.linalg.svd(directions[places], full_matrices=False).Vh[: most_directions(train.dim)]
    centre = class_means(train, categories.base).mean(0)
    return partial(_without, centre=centre, basis=basis, signed=is_signed(train, categories.base))


def most_directions(dim: int) -> int:
    """How many directions are taken out at most, the strongest first: with as many stand-ins as dimensions their rows
    span everything, what other categories are told by included, and nothing would be left to recognise.

    Class means on mini-ImageNet's 60 + 33 categories, 5 shots, 21 stand-ins, in the first 16 principal components: a
    harmonic mean of 20.2 with a quarter (20.3 with the best constant), 16.5 with all; in 32: 22.0 (22.2), and 20.0.
    """
    return max(1, dim // 4)


def _without(rows: Tensor, centre: Tensor, basis: Tensor, signed: bool) -> Tensor:
    """Rows without their part along the basis, about the centre; what is never negative stays so."""
    centre, basis = centre.to(rows.device), basis.to(rows.device)
    rest = rows - ((rows - centre) @ basis.T) @ basis
    return rest if signed else torch.clamp_min(rest, 0)


def discriminants(train: Split, base: Sequence[str]) -> Tensor:
    """(n_base, dim) directions that tell each class from the others, where the network's own classifier is not at
    hand: linear discriminants, their covariance halfway between that of the rows and a sphere.

    On mini-ImageNet they have a cosine of 0.67 with the trained classifier's rows, and lead to the same constant.
    """
    rows, targets = rows_of(train, base, DISCRIMINANT_ROWS)
    means = class_means(train, base)
    within = take_float(train, rows) - means[torch.from_numpy(targets)]
    covariance = within.T @ within / len(within)
    covariance.diagonal().add_(covariance.diagonal().mean())
    solved: Tensor = torch.linalg.solve(covariance, (means - means.mean(0)).T)
    return solved.T

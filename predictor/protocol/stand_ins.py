"""Base categories that stand in for novel ones, so that a constant on novel scores is fitted without any of those.

In each of many tasks some base categories are learnt from a few examples, beside all that is known of the others. But
the network was trained to tell these stand-ins apart, so they are easier than what is novel: the directions that its
classifier uses for them are taken out of every activation of the task first. And it was trained on their very images,
so rows that it was not trained on are shown and asked about where there are any (`HeldOut`). Where the split has
validation categories, which the network never saw, those are used instead, as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.streams.sampling import STAND_INS, Stream, draw_support, generator
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import Rows, class_means, is_signed, join_groups, rows_of, take_float
from predictor.protocol.method import Separable, Support
from predictor.protocol.outcome import BaseSide, Outcome, Queries

MOST_QUERIES = 4000  # of the base and of the stand-ins in each task
DISCRIMINANT_ROWS = 20_000  # a sample: ten times the dimension of a ResNet-50
HELD_OUT_SHARE = 0.2  # of the base rows of the split that is tested on
Change = Callable[[Tensor], Tensor]  # (n, dim) -> (n, dim)


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
    """base: the categories that keep what is known of them. examples: (n_stand_in, most_shots, dim). All activations,
    those of the queries too, are as `change` leaves them; what a method knows of the base it must change alike."""

    base: tuple[str, ...]
    stand_ins: tuple[str, ...]
    change: Change
    examples: Tensor
    rows: Rows
    queries: Queries

    def support(self, shots: int) -> Support:
        return Support(self.examples[:, :shots], self.rows[:, :shots])

    def outcomes(self, method: Separable, shots: Sequence[int]) -> list[Outcome]:
        """For each number of shots; the method must know `base`, changed."""
        side = BaseSide.of(method.table_base_scores(self.queries), self.queries)
        return [
            Outcome.of(side, method.novel_scores(self.queries.activations, self.support(count)), self.queries)
            for count in shots
        ]


def stand_in_tasks(
    train: Split,
    categories: CategorySplit,
    most_shots: int,
    head: Tensor | None = None,
    held_out: HeldOut | None = None,
    tasks: int = 20,
    seed: int = 0,
) -> Iterator[StandInTask]:
    """head: w_large^pt (n_base, dim) in the order of the base categories; without it linear discriminants are used."""
    if tasks < 1:
        raise InvalidInputError(f"calibration needs at least one task, got {tasks}")
    directions = None
    if not categories.validation:
        directions = discriminants(train, categories.base) if head is None else head - head.mean(0)
    for number in range(tasks):
        stand_ins = choose_stand_ins(categories, seed, number)
        change = _unlearning(train, categories, stand_ins, directions)
        yield _task(train, categories, stand_ins, most_shots, change, held_out, seed, number)


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


def usable(held_out: HeldOut | None, categories: CategorySplit, most_shots: int) -> HeldOut | None:
    """None where some base category has too few held-out rows to be shown examples of and asked about."""
    needed = 1 if categories.validation else most_shots + 1
    if held_out is None or min(len(held_out.of_class(name)) for name in categories.base) < needed:
        return None
    return held_out


def _task(
    train: Split,
    categories: CategorySplit,
    stand_ins: tuple[str, ...],
    most_shots: int,
    change: Change,
    held_out: HeldOut | None,
    seed: int,
    number: int,
) -> StandInTask:
    others = tuple(name for name in categories.base if name not in set(stand_ins))
    if held_out is None:
        base_split, (base_rows, base_targets) = train, rows_of(train, others, MOST_QUERIES)
    else:
        base_split = held_out.split
        base_rows, base_targets = join_groups([held_out.of_class(name) for name in others], MOST_QUERIES)
    if held_out is None or categories.validation:  # of validation categories no row was trained on
        split, shown, rows, targets = train, *_from_train(train, stand_ins, most_shots, seed, number)
    else:
        split, shown, rows, targets = held_out.split, *_from_held_out(held_out, stand_ins, most_shots, seed, number)
    if not len(rows):
        raise InvalidInputError(
            f"{most_shots} shots leave no row of the stand-ins to measure on; calibrate with fewer --shots"
        )
    activations = change(torch.cat([take_float(base_split, base_rows), take_float(split, rows)]))
    queries = Queries(activations, torch.from_numpy(base_targets), torch.from_numpy(targets))
    examples = change(take_float(split, shown.ravel())).reshape(*shown.shape, train.dim)
    return StandInTask(others, stand_ins, change, examples, shown, queries)


def _from_train(
    train: Split, stand_ins: tuple[str, ...], most_shots: int, seed: int, number: int
) -> tuple[Rows, Rows, Rows]:
    """Examples (n_stand_in, most_shots), and of the other rows those to ask about with their targets."""
    index = train.class_index
    labels = np.array([index.position(name) for name in stand_ins])
    shown = draw_support(index, labels, most_shots, seed, number)
    rows, targets = rows_of(train, stand_ins, MOST_QUERIES)
    unseen = ~np.isin(rows, shown)
    return shown, rows[unseen], targets[unseen]


def _from_held_out(
    held_out: HeldOut, stand_ins: tuple[str, ...], most_shots: int, seed: int, number: int
) -> tuple[Rows, Rows, Rows]:
    random = generator(seed, number, Stream.STAND_IN_EXAMPLES)
    mixed = [random.permutation(held_out.of_class(name)) for name in stand_ins]
    rows, targets = join_groups([np.sort(group[most_shots:]) for group in mixed], MOST_QUERIES)
    return np.stack([group[:most_shots] for group in mixed]), rows, targets


def _unlearning(
    train: Split, categories: CategorySplit, stand_ins: tuple[str, ...], directions: Tensor | None
) -> Change:
    """What takes the stand-ins' directions out of activations; nothing for validation categories, which are novel."""
    if directions is None:
        return as_they_are
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


def as_they_are(rows: Tensor) -> Tensor:
    return rows


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


def describe(categories: CategorySplit, has_head: bool, tasks: int, held_out: HeldOut | None) -> str:
    """What constants were fitted on, for a column of the table."""
    where = "training rows" if held_out is None else f"{held_out.share:.0%} of the base rows of {held_out.split.name}"
    if categories.validation:
        return f"{len(categories.validation)} validation categories, {tasks} draws; base queries: {where}"
    part = "the classifier's rows" if has_head else "linear discriminants"
    return f"{tasks} tasks of base categories as stand-ins, {part} taken out; {where}"

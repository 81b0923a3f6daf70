"""Base categories that stand in for novel ones, so that a constant on novel scores is fitted without any of those.

In each of many tasks some base categories are learnt from a few examples, beside all that is known of the others. Where
the network was trained on the base, rows that it was not trained on are asked about if a category has some (`HeldOut`),
and shown if it has enough; else all rows of a stand-in are as new to it. Training rows of the base that are asked about
are left out of what is known: a query is never compared with itself. Where the split has validation categories, which
the network never saw, those are used instead.

A network that was trained on the base tells these stand-ins apart more easily than what is novel, so they ask for too
low a constant. Whether it was (`knows_base`) decides how far above it the constant is chosen (calibration.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.search.by_class import unit
from actstore.split import Split
from actstore.streams.sampling import STAND_INS, Stream, generator
from predictor.protocol.base_categories import BaseCategories, Rows, join_groups, take_float
from predictor.protocol.category_split import CategorySplit, compare_names
from predictor.protocol.method import Method
from predictor.protocol.outcome import BaseSide, Outcome, Queries

MOST_QUERIES = 4000  # of the base and of the stand-ins in each task
HELD_OUT_SHARE = 0.2  # of the base rows of the split that is tested on
LEFT_OUT_SHARE = 0.2  # of the training rows of a base category that has no held-out ones
KNOWN_POINTS, KNOWN_ERRORS = 3.0, 2.0  # by which training rows must be easier: in points, and in standard errors
Taken = tuple[Split, Rows]  # rows of a split


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
    """base: the categories that keep what is known of them. examples: (n_stand_in, most_shots, dim).
    is_even: (n,) whether the row that a query was made of has an even number: halves which
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
        return [
            Outcome.of(side, method.combined_scores(asked, self.examples[:, :count]), self.queries) for count in shots
        ]


@dataclass(frozen=True)
class StandInSource:
    """Where the rows of tasks come from. held_out: rows that the network was not trained on."""

    train: Split
    categories: CategorySplit
    most_shots: int
    held_out: HeldOut | None = None

    def tasks(self, count: int = 20, seed: int = 0) -> Iterator[StandInTask]:
        if count < 1:
            raise InvalidInputError(f"calibration needs at least one task, got {count}")
        for number in range(count):
            yield self._task(choose_stand_ins(self.categories, seed, number, self.too_poor), seed, number)

    @cached_property
    def knows_base(self) -> bool:
        """Whether the network was trained on the categories that stand in, and not on the novel ones."""
        return not self.categories.validation and knows_base(self.train, self.categories, self.held_out)

    @cached_property
    def too_poor(self) -> frozenset[str]:
        """Categories without a row beyond their examples, which cannot stand in; none where too many are."""
        names = self.categories.validation or self.categories.base
        poor = frozenset(name for name in names if self._is_poor(name))
        return poor if len(names) - len(poor) >= max(2, len(names) // 2) else frozenset()

    def _is_poor(self, name: str) -> bool:
        """Examples are held-out rows where they suffice, else training rows; asked about are others of either."""
        index, held = self.train.class_index, len(self._held(name))
        if held > self.most_shots and self.knows_base:
            return False
        return int(index.counts[index.position(name)]) + (held > 0) <= self.most_shots

    def _held(self, name: str) -> Rows:
        """Held-out rows of a stand-in; a validation category, which the network never saw, has none."""
        if self.held_out is None or self.categories.validation:
            return np.empty(0, np.int64)
        return self.held_out.of_class(name)

    @property
    def short_of_rows(self) -> list[str]:
        """Base categories with too few held-out rows to be shown examples of and asked about."""
        held_out, most = self.held_out, self.most_shots
        return [] if held_out is None else [n for n in self.categories.base if len(held_out.of_class(n)) <= most]

    def _task(self, stand_ins: tuple[str, ...], seed: int, number: int) -> StandInTask:
        random = generator(seed, number, Stream.STAND_IN_EXAMPLES)
        novel, shown = [], []
        for name in stand_ins:
            taught, asked = self._stand_in_rows(name, random)
            shown.append(take_float(*taught))
            novel.append(asked)
        others = tuple(name for name in self.categories.base if name not in set(stand_ins))
        base = [[self._base_rows(name, random)] for name in others]
        base_rows, base_activations, base_targets, left_out = self._gather(base)
        novel_rows, novel_activations, novel_targets, _ = self._gather(novel)
        if not len(novel_rows):
            raise InvalidInputError(
                f"{self.most_shots} shots leave no row of the stand-ins to measure on; calibrate with fewer (shots=, "
                "--shots)"
            )
        activations = torch.cat([base_activations, novel_activations])
        examples = torch.cat(shown).reshape(len(stand_ins), self.most_shots, -1)
        known = BaseCategories.of_split(self.train, others, left_out=left_out)
        is_even = torch.from_numpy(np.concatenate([base_rows, novel_rows]) % 2 == 0)
        return StandInTask(known, stand_ins, examples, Queries(activations, base_targets, novel_targets), is_even)

    def _base_rows(self, name: str, random: np.random.Generator) -> Taken:
        """What is asked about a base category: held-out rows, or a share of the training rows that leaves some."""
        if self.held_out is not None and len(rows := self.held_out.of_class(name)):
            return self.held_out.split, rows
        index = self.train.class_index
        rows = index.rows(index.position(name))
        count = min(len(rows) - 1, max(1, round(LEFT_OUT_SHARE * len(rows))))
        return self.train, np.sort(random.permutation(rows)[:count])

    def _stand_in_rows(self, name: str, random: np.random.Generator) -> tuple[Taken, list[Taken]]:
        """Examples of a stand-in, and what is asked about it. Of a category that the network was trained on held-out
        rows where it has enough of them, else examples from the training rows; only without any held-out row both. Of
        any other all rows that are not shown: the more, the surer is the constant."""
        index, count = self.train.class_index, self.most_shots
        held = random.permutation(self._held(name))
        if self.held_out is not None and self.knows_base and len(held) > count:
            return (self.held_out.split, held[:count]), [(self.held_out.split, np.sort(held[count:]))]
        rows = random.permutation(index.rows(index.position(name)))
        if len(rows) < count:
            raise InvalidInputError(
                f"class {name!r} has {len(rows):,} rows, too few for {count} shots; use fewer shots (shots=, --shots)"
            )
        asked: list[Taken] = []
        if self.held_out is not None and len(held):
            asked.append((self.held_out.split, np.sort(held)))
        if not (asked and self.knows_base):
            asked.append((self.train, np.sort(rows[count:])))
        return (self.train, rows[:count]), asked

    def _gather(self, groups: Sequence[Sequence[Taken]]) -> tuple[Rows, Tensor, Tensor, Rows]:
        """Rows (at most MOST_QUERIES), activations and targets of groups from two splits; and the training rows."""
        parts = [(split is self.train, rows, target) for target, group in enumerate(groups) for split, rows in group]
        rows, places = join_groups([rows for _, rows, _ in parts], MOST_QUERIES)
        in_train = np.array([known for known, _, _ in parts], bool)[places]
        targets = np.array([target for _, _, target in parts], np.int64)[places]
        order = np.argsort(in_train, kind="stable")  # held-out rows first
        rows, targets, in_train = rows[order], targets[order], in_train[order]
        taken = [take_float(self.train, rows[in_train])]
        if self.held_out is not None:
            taken.insert(0, take_float(self.held_out.split, rows[~in_train]))
        return rows, torch.cat(taken), torch.from_numpy(targets), rows[in_train]

    def describe(self, tasks: int) -> str:
        """What constants were fitted on, for a column of the table."""
        where = "training rows, which are left out of what is known"
        if self.held_out is not None:
            where = f"{self.held_out.share:.0%} of the base rows of {self.held_out.split.name}"
        have = "has" if len(self.too_poor) == 1 else "have"
        left_out = f", without {len(self.too_poor):,} that {have} too few rows" * bool(self.too_poor)
        if self.categories.validation:
            count = len(self.categories.validation) - len(self.too_poor)
            return f"{count} validation categories{left_out}, {tasks} draws; base queries: {where}"
        if self.held_out is None:
            return f"{tasks} tasks of base categories as stand-ins{left_out}; {where}"
        if not self.knows_base:
            return f"{tasks} tasks of base categories as stand-ins{left_out}; their training rows and {where}"
        if few := self.short_of_rows:
            where += f" (examples of {len(few):,} categories with too few there, such as {few[0]}: training rows)"
        return f"{tasks} tasks of base categories as stand-ins{left_out}, which the network was trained on; {where}"


def choose_stand_ins(
    categories: CategorySplit, seed: int, task: int, too_poor: Collection[str] = ()
) -> tuple[str, ...]:
    """All validation categories, or base ones in the proportion that the novel ones have among all. Each stands in as
    often as others: one task after another takes the next ones of a permutation, until too few are left. too_poor:
    those that cannot stand in."""
    if categories.validation:
        return tuple(name for name in categories.validation if name not in too_poor)
    share = len(categories.novel) / (len(categories.base) + len(categories.novel)) if categories.novel else 0.1
    count = max(2, round(share * len(categories.base)))
    if count >= len(categories.base):
        raise InvalidInputError(
            f"{len(categories.base)} base categories are too few to calibrate on; set a constant by hand (novel_bias=, "
            "--novel-bias)"
        )
    names = [name for name in categories.base if name not in too_poor]
    count = min(count, len(names))
    again, group = divmod(task, len(names) // count)
    order = generator(seed, again, stream=STAND_INS).permutation(len(names))
    return tuple(names[place] for place in np.sort(order[group * count :][:count]))


def knows_base(train: Split, categories: CategorySplit, held_out: HeldOut | None) -> bool:
    """Whether the network was trained on the base categories and not on the novel ones: as the store records it, where
    names can be compared. Else training rows of the base tell: those that a network was trained on are easier than
    held-out ones, by the nearest centred class mean. Without any, it was not.

    Mini-ImageNet's own network: 69 and 55%. 100 bird categories by an ImageNet network: 70 and 74%, 67 and 68%.
    """
    base, trained = categories.base, train.spec.provenance.get("trained_classes")
    if trained is not None:
        found = compare_names((*base, *categories.novel), trained, train.classes)
        if not found.unknown:
            shares = [sum(name in found.same for name in part) > len(part) / 2 for part in (base, categories.novel)]
            return shares == [True, False]
    held = [np.empty(0, np.int64) if held_out is None else held_out.of_class(name) for name in base]
    if held_out is None or not sum(map(len, held)):
        return False
    index, random = train.class_index, generator(0, 0, Stream.UNTESTED_ROWS)
    known = [index.rows(index.position(name)) for name in base]
    ours = [random.permutation(rows)[: min(len(other), len(rows) - 1)] for rows, other in zip(known, held, strict=True)]
    asked = [join_groups(groups, MOST_QUERIES) for groups in (ours, held)]
    means = BaseCategories.of_split(train, base, left_out=asked[0][0]).means
    centre, right = means.mean(0), []
    for split, (rows, targets) in zip((train, held_out.split), asked, strict=True):
        best = ((take_float(split, rows) - centre) @ unit(means - centre).T).argmax(1)
        right.append((best.numpy() == targets).astype(np.float64))
    gap, error = right[0].mean() - right[1].mean(), sum(hits.var() / len(hits) for hits in right) ** 0.5
    return bool(100 * gap > KNOWN_POINTS and gap > KNOWN_ERRORS * error)

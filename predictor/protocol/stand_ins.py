"""Base categories that stand in for novel ones, so that a constant on novel scores is fitted without any of those.

In each of many tasks some base categories are learnt from a few examples, beside all that is known of the others. Where
the network was trained on the base, rows that it was not trained on are asked about if a category has some (`HeldOut`),
and shown if it has enough; else all rows of a stand-in are as new to it. Training rows of the base that are asked about
are left out of what is known: a query is never compared with itself. Where the split has validation categories, which
the network never saw, those are used instead.

How many categories compete changes the best constant. So nearly as many compete as in the test: a few base categories
stand in at a time, and others, which stay known, compete as novel ones beside them (rivals).

A network that was trained on the base tells these stand-ins apart more easily than what is novel, so they ask for too
low a constant. Whether it was (`knows_base`) decides how far above it the constant is chosen (calibration.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
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
LEFT_OUT_SHARE = 0.2  # of the training rows of a base category, where they are asked about
ENOUGH_QUERIES = 10  # of a base category, where training rows may be asked about too
MOST_STAND_INS = 0.2  # of the base categories in a task
KNOWN_POINTS, KNOWN_ERRORS = 3.0, 3.0  # by which training rows must be easier: in points, and in standard errors
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
    """base: the categories that keep what is known of them. rivals: (n_rival,) places of those among them that compete
    as novel ones too. examples: (n_stand_in + n_rival, most_shots, dim). as_in_test: (n,) chooses queries at random, no
    more than the test has of either side: the fewer there are, the more the best constant gains by chance."""

    base: BaseCategories
    stand_ins: tuple[str, ...]
    rivals: Rows
    examples: Tensor
    queries: Queries
    as_in_test: NDArray[np.bool_]

    def outcomes(self, method: Method, shots: Sequence[int]) -> list[Outcome]:
        """For each number of shots, by a method that was prepared for `base`."""
        side = BaseSide.of(method.table_base_scores(self.queries), self.queries)
        asked, found = self.queries.activations, []
        for count in shots:
            scores = method.combined_scores(asked, self.examples[:, :count])
            found.append(Outcome.of(side, scores.masked_fill(self.is_rival_of_itself, -torch.inf), self.queries))
        return found

    def categories_asked(self, names: Sequence[str]) -> tuple[Rows, Rows, Rows]:
        """Places among these names: of the category of each base and of each novel query, and of the stand-ins."""
        place = {name: number for number, name in enumerate(names)}
        base, novel = (np.array([place[name] for name in part]) for part in (self.base.names, self.stand_ins))
        return base[self.queries.base_targets.numpy()], novel[self.queries.novel_targets.numpy()], novel

    @cached_property
    def is_rival_of_itself(self) -> Tensor:
        """(n, n_stand_in + n_rival) whether a query is of the base category that competes there."""
        novel = torch.full((len(self.stand_ins),), -1)
        competing = torch.cat([novel, torch.from_numpy(self.rivals)])
        of_novel = torch.full((len(self.queries.novel_targets),), -2)
        return torch.cat([self.queries.base_targets, of_novel])[:, None] == competing


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
        base_activations, base_targets, left_out = self._gather([self._base_rows(name, random) for name in others])
        novel_activations, novel_targets, _ = self._gather(novel)
        rivals = self._rivals(others, len(stand_ins), random)
        shown += [take_float(*self._stand_in_rows(others[place], random)[0]) for place in rivals]
        if not len(novel_targets):
            raise InvalidInputError(
                f"{self.most_shots} shots leave no row of the stand-ins to measure on; calibrate with fewer (shots=, "
                "--shots)"
            )
        activations = torch.cat([base_activations, novel_activations])
        examples = torch.stack(shown)
        known = BaseCategories.of_split(self.train, others, left_out=left_out)
        counts = zip((len(base_targets), len(novel_targets)), self._test_size, strict=True)
        as_in_test = np.concatenate([random.permutation(count) < most for count, most in counts])
        queries = Queries(activations, base_targets, novel_targets)
        return StandInTask(known, stand_ins, rivals, examples, queries, as_in_test)

    @cached_property
    def _test_size(self) -> tuple[float, float]:
        """Images of base and of novel categories in the test; infinite where nobody knows."""
        if self.held_out is None:
            return math.inf, math.inf
        index = self.held_out.split.class_index
        base, novel = (int(index.counts[index.positions(part)].sum()) for part in
                       (self.categories.base, self.categories.novel))  # fmt: skip
        return base - len(self.held_out.rows(self.categories.base)), novel or math.inf

    def _rivals(self, others: Sequence[str], stand_ins: int, random: np.random.Generator) -> Rows:
        """Places of those that compete as novel ones too, so that there is one to as many known ones as in the test."""
        able = [place for place, name in enumerate(others) if not self._is_poor(name)]
        wanted = round(len(self.categories.novel) * len(others) / len(self.categories.base))
        return np.sort(random.permutation(np.array(able, np.int64))[: max(0, wanted - stand_ins)])

    def _base_rows(self, name: str, random: np.random.Generator) -> list[Taken]:
        """What is asked about a base category: held-out rows, and where these are few, a share of the training rows
        that leaves some; where the network may have been trained on these, only if there is no held-out row."""
        asked: list[Taken] = []
        missing = ENOUGH_QUERIES
        if self.held_out is not None and len(rows := self.held_out.of_class(name)):
            asked.append((self.held_out.split, rows))
            missing -= len(rows)
            if missing <= 0 or self.knows_base or self.categories.validation:
                return asked
        index = self.train.class_index
        rows = random.permutation(index.rows(index.position(name)))
        most = min(len(rows) - 1, max(1, round(LEFT_OUT_SHARE * len(rows))))
        return [*asked, (self.train, np.sort(rows[: min(most, missing) if asked else most]))]

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

    def _gather(self, groups: Sequence[Sequence[Taken]]) -> tuple[Tensor, Tensor, Rows]:
        """Activations and targets of groups from two splits, at most MOST_QUERIES rows; and the training rows."""
        parts = [(split is self.train, rows, target) for target, group in enumerate(groups) for split, rows in group]
        rows, places = join_groups([rows for _, rows, _ in parts], MOST_QUERIES)
        in_train = np.array([known for known, _, _ in parts], bool)[places]
        targets = np.array([target for _, _, target in parts], np.int64)[places]
        order = np.argsort(in_train, kind="stable")  # held-out rows first
        rows, targets, in_train = rows[order], targets[order], in_train[order]
        taken = [take_float(self.train, rows[in_train])]
        if self.held_out is not None:
            taken.insert(0, take_float(self.held_out.split, rows[~in_train]))
        return torch.cat(taken), torch.from_numpy(targets), rows[in_train]

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
            if any(len(self.held_out.of_class(name)) < ENOUGH_QUERIES for name in self.categories.base):
                where += " and of their training rows, which are left out of what is known"
            return f"{tasks} tasks of base categories as stand-ins{left_out}, by their training rows; {where}"
        if few := self.short_of_rows:
            where += f" (examples of {len(few):,} categories with too few there, such as {few[0]}: training rows)"
        return f"{tasks} tasks of base categories as stand-ins{left_out}, which the network was trained on; {where}"


def choose_stand_ins(
    categories: CategorySplit, seed: int, task: int, too_poor: Collection[str] = ()
) -> tuple[str, ...]:
    """All validation categories, or base ones in the proportion that the novel ones have among all, but at most a
    fifth. Each stands in as often as others: one task after another takes the next ones of a permutation, until too few
    are left. too_poor: those that cannot stand in."""
    if categories.validation:
        return tuple(name for name in categories.validation if name not in too_poor)
    share = len(categories.novel) / (len(categories.base) + len(categories.novel)) if categories.novel else 0.1
    count = max(2, round(min(share, MOST_STAND_INS) * len(categories.base)))
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
    a record that names no majority of the base says that it was not. Else training rows of the base tell: those that a
    network was trained on are easier than held-out ones, by the nearest centred class mean. Without any, it was not.

    Mini-ImageNet's own network: 69 and 55%. 100 bird categories by an ImageNet network: 70 and 74%, 67 and 68%.
    """
    base, trained = categories.base, train.spec.provenance.get("trained_classes")
    if trained is not None:
        found = compare_names((*base, *categories.novel), trained, train.classes)
        least = [sum(name in found.same for name in part) / max(1, len(part)) for part in (base, categories.novel)]
        if least[0] <= 0.5 or least[1] > 0.5:  # names that cannot be compared are no evidence of training
            return False
        if sum(name in found.same or name in found.unknown for name in categories.novel) <= len(categories.novel) / 2:
            return True
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

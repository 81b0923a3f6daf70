"""All-way accuracies of any recogniser over many support draws, the same draws for every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.streams.sampling import draw_support, generator
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.constant import nearest_shots
from predictor.protocol.method import Method, Separable, Support
from predictor.protocol.method_key import CALIBRATED
from predictor.protocol.outcome import BaseSide, Outcome, Queries

SIGN_ROWS = 1000
Progress = Callable[[int], None]  # draws done since the last call


@dataclass(frozen=True)
class AllWayTask:
    """Base and novel categories of a store: support comes from `train`, queries from `test`.

    most: a limit on the queries of the base and of the novel categories, drawn at random; None: all. without: rows of
    `test` that are not asked about, such as those that constants were fitted on.
    """

    train: Split
    test: Split
    base: tuple[str, ...]
    novel: tuple[str, ...]
    most: int | None = None
    without: tuple[int, ...] = ()

    @cached_property
    def queries(self) -> Queries:
        base_rows, base_targets = self._asked(self.base)
        novel_rows, novel_targets = self._asked(self.novel)
        rows = np.concatenate([base_rows, novel_rows])
        return Queries(take_float(self.test, rows), torch.from_numpy(base_targets), torch.from_numpy(novel_targets))

    def _asked(self, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows, targets = rows_of(self.test, names, self.most)
        asked = ~np.isin(rows, self.without)
        return rows[asked], targets[asked]

    def support(self, shots: int, seed: int, draw: int) -> Support:
        index = self.train.class_index
        labels = [index.position(name) for name in self.novel]
        rows = draw_support(index, np.array(labels, np.int64), shots, seed, draw)
        activations = take_float(self.train, rows.ravel()).reshape(*rows.shape, self.train.dim)
        return Support(activations, rows)


def all_way_task(train: Split, test: Split, split: CategorySplit, most: int | None = None) -> AllWayTask:
    """The test categories of a split; its validation categories take no part."""
    if not split.novel:
        raise InvalidInputError("the split names no novel class; an all-way task needs at least one")
    if train.path == test.path:
        raise InvalidInputError(
            f"support and test images both come from split {train.name!r} of {train.store_path}; "
            "choose another split to test on"
        )
    for part in (train, test):
        split.require_known(part.classes, ("base", "novel"))
    for what, names in (("base", split.base), ("novel", split.novel)):
        if not len(rows_of(test, names)[0]):
            raise InvalidInputError(f"{test.path} holds no row of a {what} class to test on; choose another split")
    return AllWayTask(train, test, split.base, split.novel, most)


def outcomes(
    method: Method, task: AllWayTask, shots: int, draws: Iterable[int], seed: int, base: BaseSide | None = None
) -> Iterator[Outcome]:
    """One outcome per support draw. base: what `base_side` gave, where it was asked before."""
    for plain, *_ in _outcomes(method, task, shots, draws, seed, base, ()):
        yield plain


def _outcomes(
    method: Method,
    task: AllWayTask,
    shots: int,
    draws: Iterable[int],
    seed: int,
    base: BaseSide | None,
    biases: Sequence[float],
) -> Iterator[list[Outcome]]:
    """Per draw the outcome as it is, and one for each bias on the novel scores, which are computed once."""
    queries = task.queries
    base = base_side(method, task) if base is None else base
    for draw in draws:
        support = task.support(shots, seed, draw)
        if isinstance(method, Separable) and base is not None:
            novel = method.novel_scores(queries.activations, support)
            yield [Outcome.of(base, novel + bias if bias else novel, queries) for bias in (0.0, *biases)]
        else:
            scores = method.scores(queries.activations, support)
            ours, novel = scores[:, : len(task.base)], scores[:, len(task.base) :]
            yield [Outcome.of(BaseSide.of(ours, queries), novel, queries)]


def base_side(method: Method, task: AllWayTask) -> BaseSide | None:
    """What all draws and shots of a separable method share; None where adapting changes the base scores."""
    if not isinstance(method, Separable):
        return None
    activations = task.queries.activations
    return BaseSide.of(method.base_scores(activations), task.queries, method.query_lengths(activations))


@dataclass(frozen=True)
class Row:
    """A line of the table: means over draws with the half-width of their 95% confidence interval.

    paper_name, paper_share: the row of the paper's table to print beside it. key, variant, fitted_on: as in `Method`.
    values: of every draw, in the order of the draws, which all methods share.
    """

    method: str
    share: str
    shots: str
    finetuned: bool
    draws: int
    mean: dict[str, float]
    interval: dict[str, float]
    paper_name: str
    key: str
    variant: str
    paper_share: str = ""
    fitted_on: str = ""
    values: dict[str, list[float]] = field(default_factory=dict)


def evaluate(
    method: Method,
    task: AllWayTask,
    shots: Sequence[int],
    draws: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Row]:
    """A row per number of shots, with every metric of outcome.METRICS, and another where the method has constants.

    A method that takes no support has one row.
    """
    base = base_side(method, task)
    rows = []
    for count, numbers in plan_draws(method, shots, draws).items():
        fitted = method.constants if base is not None else {}
        biases = [fitted[nearest_shots(fitted, count)]] if fitted else []
        measured: list[list[dict[str, float]]] = [[] for _ in range(1 + len(biases))]
        for found in _outcomes(method, task, count, numbers, seed, base, biases):
            for place, outcome in enumerate(found):
                measured[place].append(outcome.metrics())
            if progress is not None:
                progress(1)
        label = str(count) if method.uses_support else "all"
        rows += [_row(method, label, values, is_shifted=place > 0) for place, values in enumerate(measured)]
    return rows


def _row(method: Method, shots: str, measured: Sequence[dict[str, float]], is_shifted: bool) -> Row:
    """is_shifted: with the method's constant, which the paper has in no row."""
    values = {name: [one[name] for one in measured] for name in measured[0]}
    name = f"{method.name}, {CALIBRATED}" if is_shifted else method.name
    return Row(
        method=name,
        share=method.share,
        shots=shots,
        finetuned=method.finetuned,
        draws=len(measured),
        mean={key: float(np.mean(found)) for key, found in values.items()},
        interval={key: half_width(found) for key, found in values.items()},
        paper_name=name if is_shifted else method.paper_name or name,
        key=method.key or method.name,
        variant=CALIBRATED if is_shifted else method.variant,
        paper_share=method.paper_share or method.share,
        fitted_on=method.fitted_on if is_shifted or method.variant == CALIBRATED else "",
        values=values,
    )


def plan_draws(method: Method, shots: Sequence[int], draws: int) -> dict[int, range]:
    """Shots -> numbers of the draws that a method is measured on."""
    if method.only_draw is not None:
        count, number = method.only_draw
        return {count: range(number, number + 1)} if count in shots else {}
    if not method.uses_support:
        return {shots[0]: range(1)}
    return dict.fromkeys(shots, range(draws))


def half_width(values: Sequence[float]) -> float:
    """Of the 95% confidence interval of the mean, by Student's t; NaN for a single value."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return float("nan")
    return float(stdtrit(len(values) - 1, 0.975) * np.std(values, ddof=1) / np.sqrt(len(values)))


def rows_of(split: Split, names: Sequence[str], most: int | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of these classes, and for each the position of its class among them; at most `most`, ascending."""
    index = split.class_index
    parts = [index.rows(index.position(name)) for name in names]
    rows = np.concatenate([*parts, np.empty(0, np.int64)])
    targets = np.repeat(np.arange(len(names)), [len(part) for part in parts])
    return (rows, targets) if most is None else at_most(rows, targets, most)


def at_most(
    rows: NDArray[np.int64], targets: NDArray[np.int64], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A random sample of so many, in their order: the first ones would be of the first categories alone."""
    if len(rows) <= most:
        return rows, targets
    kept = np.sort(generator(0, 0).choice(len(rows), most, replace=False))
    return rows[kept], targets[kept]


def take_float(split: Split, rows: NDArray[Any]) -> Tensor:
    """(n, dim) float32."""
    return split.to_torch(rows, dtype=torch.float32)


def is_signed(split: Split, names: Sequence[str]) -> bool:
    """Whether activations of these classes may be negative, as transformers' are: nearly every row is, so some tell."""
    return bool((take_float(split, rows_of(split, names, SIGN_ROWS)[0]) < 0).any())


def class_means(split: Split, names: Sequence[str]) -> Tensor:
    """(n, dim) mean activations of these classes; computed first where the store has none yet."""
    index = split.class_index
    labels = [index.position(name) for name in names]
    if (index.counts[labels] == 0).any():
        empty = names[int(np.flatnonzero(index.counts[labels] == 0)[0])]
        raise InvalidInputError(f"class {empty!r} has no rows in {split.path}, so it has no mean; leave it out")
    return torch.from_numpy(split.means()[labels])

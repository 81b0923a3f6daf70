"""All-way accuracies of any recogniser over many support draws, the same draws for every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
Rows = NDArray[np.int64]  # row numbers of a split


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

    def _asked(self, names: Sequence[str]) -> tuple[Rows, Rows]:
        rows, targets = rows_of(self.test, names, self.most)
        asked = ~np.isin(rows, self.without)
        return rows[asked], targets[asked]

    @cached_property
    def _drawn(self) -> dict[tuple[int, int, int], Rows]:
        """Rows by (shots, seed, draw): every method asks for the same ones."""
        return {}

    def support(self, shots: int, seed: int, draw: int) -> Support:
        key = shots, seed, draw
        if key not in self._drawn:
            index = self.train.class_index
            labels = np.array([index.position(name) for name in self.novel], np.int64)
            self._drawn[key] = draw_support(index, labels, shots, seed, draw)
        rows = self._drawn[key]
        activations = take_float(self.train, rows.ravel()).reshape(*rows.shape, self.train.dim)
        return Support(activations, rows)


def all_way_task(train: Split, test: Split, split: CategorySplit) -> AllWayTask:
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
    return AllWayTask(train, test, split.base, split.novel)


def outcomes(method: Method, task: AllWayTask, shots: int, draws: Iterable[int], seed: int) -> Iterator[Outcome]:
    """One outcome per support draw."""
    for (outcome,) in _outcomes(method, task, shots, draws, seed, base_side(method, task), ()):
        yield outcome


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
    for draw in draws:
        support = task.support(shots, seed, draw)
        if isinstance(method, Separable) and base is not None:
            novel = method.novel_scores(queries.activations, support)
            yield [Outcome.of(base, novel + bias if bias else novel, queries) for bias in (0.0, *biases)]
        else:
            scores = method.table_scores(queries, support)
            ours, novel = scores[:, : len(task.base)], scores[:, len(task.base) :]
            yield [Outcome.of(BaseSide.of(ours, queries), novel, queries)]


def base_side(method: Method, task: AllWayTask) -> BaseSide | None:
    """What all draws and shots of a separable method share; None where adapting changes the base scores."""
    if not isinstance(method, Separable):
        return None
    lengths = method.query_lengths(task.queries.activations)
    return BaseSide.of(method.table_base_scores(task.queries), task.queries, lengths)


class Shifted(Separable):
    """A method with the constant that calibration found for so many examples."""

    def __init__(self, method: Separable, shots: int) -> None:
        self._method, self.bias = method, method.constants[nearest_shots(method.constants, shots)]
        self.key, self.variant, self.fitted_on = method.key or method.name, CALIBRATED, method.fitted_on
        self.share, self.paper_share, self.finetuned = method.share, method.paper_share, method.finetuned
        self.name = self.paper_name = f"{method.name}, {CALIBRATED}"  # which the paper has in no row

    def base_scores(self, queries: Tensor) -> Tensor:
        return self._method.base_scores(queries)

    def table_base_scores(self, asked: Queries) -> Tensor:
        return self._method.table_base_scores(asked)

    def novel_scores(self, queries: Tensor, support: Support) -> Tensor:
        return self._method.novel_scores(queries, support) + self.bias


@dataclass(frozen=True)
class Row:
    """A line of the table. values: every metric in every draw, in the order of the draws, which all methods share.
    is_beside_paper: whether the paper's figures may stand beside it."""

    method: Method
    shots: str
    values: dict[str, list[float]]
    is_beside_paper: bool = True

    @property
    def key(self) -> str:
        return self.method.key or self.method.name

    @property
    def draws(self) -> int:
        return len(next(iter(self.values.values())))

    @property
    def mean(self) -> dict[str, float]:
        return {name: float(np.mean(of_draws)) for name, of_draws in self.values.items()}

    @property
    def interval(self) -> dict[str, float]:
        """Half of the width of the means' 95% confidence intervals."""
        return {name: half_width(of_draws) for name, of_draws in self.values.items()}


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
        shifted = Shifted(method, count) if isinstance(method, Separable) and method.constants else None
        measured: list[list[dict[str, float]]] = []  # per draw, as it is and shifted
        for both in _outcomes(method, task, count, numbers, seed, base, [] if shifted is None else [shifted.bias]):
            measured.append([outcome.metrics() for outcome in both])
            if progress is not None:
                progress(1)
        label = str(count) if method.uses_support else "all"
        for way, metrics in zip(filter(None, (method, shifted)), zip(*measured, strict=True), strict=True):
            rows.append(Row(way, label, {name: [draw[name] for draw in metrics] for name in metrics[0]}))
    return rows


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


def rows_of(split: Split, names: Sequence[str], most: int | None = None) -> tuple[Rows, Rows]:
    """Rows of these classes, and for each the position of its class among them; at most `most`, ascending."""
    index = split.class_index
    return join_groups([index.rows(index.position(name)) for name in names], most)


def join_groups(groups: Sequence[Rows], most: int | None = None) -> tuple[Rows, Rows]:
    """Rows of all groups, and for each the number of its group. Of more than `most` a random sample in their order: the
    first ones would be of the first groups alone."""
    rows = np.concatenate([*groups, np.empty(0, np.int64)])
    targets = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    if most is None or len(rows) <= most:
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

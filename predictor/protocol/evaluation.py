"""All-way accuracies of any method over many support draws, the same draws for every one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.streams.sampling import draw_support
from predictor.protocol.base_categories import BaseCategories, Rows, rows_of, take_float
from predictor.protocol.calibration import Calibration, nearest_fit
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.method import JointMethod, Method
from predictor.protocol.outcome import BaseSide, Outcome, Queries
from predictor.protocol.results import CALIBRATED

_HELD_BYTES = 1 << 28  # of examples that are kept for the next method
Progress = Callable[[int], object]  # draws done since the last call


@dataclass(frozen=True)
class Support:
    """The few examples of every novel category, the same number of each.

    activations: (n_novel, shots, dim) float32. rows: (n_novel, shots), where they are in the split.
    """

    activations: Tensor
    rows: Rows


@dataclass(frozen=True)
class AllWayTask:
    """Base and novel categories of a store: support comes from `train`, queries from `test`.

    most: a limit on the queries of the base and of the novel categories, drawn at random; None: all. without: rows of
    `test` that are not asked about, such as those that constants were fitted on. fixed: of each novel category the rows
    of `train` that are shown, where they are not to be drawn.
    """

    train: Split
    test: Split
    base: tuple[str, ...]
    novel: tuple[str, ...]
    most: int | None = None
    without: tuple[int, ...] = ()
    fixed: tuple[tuple[int, ...], ...] = ()

    @cached_property
    def base_categories(self) -> BaseCategories:
        return BaseCategories.of_split(self.train, self.base)

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
    def _held(self) -> dict[tuple[int, int, int], tuple[Support, int]]:
        """Draws, for which every method asks, with the number of times that somebody wrote to their activations."""
        return {}

    def support(self, shots: int, seed: int, draw: int) -> Support:
        key = shots, seed, draw
        if key in self._held and self._held[key][0].activations._version == self._held[key][1]:
            return self._held[key][0]
        if self.fixed:
            rows = np.array(self.fixed, np.int64)[:, :shots]
        else:
            index = self.train.class_index
            rows = draw_support(index, index.positions(self.novel), shots, seed, draw)
        taken = Support(take_float(self.train, rows.ravel()).reshape(*rows.shape, self.train.dim), rows)
        held = sum(support.activations.nbytes for support, _ in self._held.values())
        if held + taken.activations.nbytes <= _HELD_BYTES and not taken.activations.is_inference():  # has no version
            self._held[key] = taken, taken.activations._version
        return taken


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


class CalibratedMethod(Method):
    """A method with the constant, and the way of combining examples, that calibration found for so many examples."""

    variant = CALIBRATED

    def __init__(self, method: Method, fits: Sequence[Calibration], shots: int) -> None:
        fit = nearest_fit(fits, shots)
        self.inner = method
        if fit.aggregate not in (None, method.aggregate):
            self.inner = copy(method)
            self.inner.aggregate = fit.aggregate
        self.bias, self.fitted_on = fit.novel_bias, fit.fitted_on
        self.key, self.share, self.paper_share = method.key, method.share, method.paper_share
        self.finetuned, self.folder = method.finetuned, method.folder
        name = method.name if not method.variant else method.name.removesuffix(f", {method.variant}")
        other_way = f", {self.inner.aggregate}" * (self.inner is not method and shots > 1)
        self.name = self.paper_name = f"{name}, {CALIBRATED}{other_way}"  # which the paper has in no row

    def prepare(self, base: BaseCategories) -> None:
        self.inner.prepare_for(base)

    def base_scores(self, queries: Tensor) -> Tensor:
        return self.inner.base_scores(queries)

    def table_base_scores(self, asked: Queries) -> Tensor:
        return self.inner.table_base_scores(asked)

    def query_lengths(self, queries: Tensor) -> Tensor:
        return self.inner.query_lengths(queries)

    def novel_scores(self, queries: Tensor, support: Tensor) -> Tensor:
        return self.inner.combined_scores(queries, support) + self.bias


def _outcomes(ways: Sequence[Method], base: BaseSide, queries: Queries, support: Tensor) -> list[Outcome]:
    """Of a method as it is, and of further ways to use it that share its base scores. Novel scores that differ by a
    constant alone are computed once."""
    scores: dict[int, Tensor] = {}
    found = []
    for way in ways:
        inner, bias = (way.inner, way.bias) if isinstance(way, CalibratedMethod) else (way, 0.0)
        if id(inner) not in scores:
            scores[id(inner)] = inner.combined_scores(queries.activations, support)
        novel = scores[id(inner)]
        found.append(Outcome.of(base, novel + bias if bias else novel, queries))
    return found


def _joint_outcome(method: JointMethod, task: AllWayTask, support: Support) -> Outcome:
    if method.only_rows is not None and not np.array_equal(support.rows, method.only_rows):
        raise InvalidInputError(
            f"{method.name} was trained on other examples than those of (shots, draw) {method.only_draw} here; "
            "train it for this one with `ppa baseline finetune-images --shots … --draw …`"
        )
    scores = method.table_scores(task.queries, support.activations)
    base, novel = scores[:, : len(task.base)], scores[:, len(task.base) :]
    return Outcome.of(BaseSide.of(base, task.queries), novel, task.queries)


@dataclass(frozen=True)
class Row:
    """A line of the table. values: every metric in every draw, in the order of the draws, which all methods share.
    is_beside_paper: whether the paper's figures may stand beside it. failed: why there is no calibrated row beside it,
    where a constant was fitted. curve: base and novel top-1 as the constant varies, mean over the draws (see
    `Outcome.curve`)."""

    method: Method
    shots: str
    values: dict[str, list[float]]
    is_beside_paper: bool = True
    failed: str = ""
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def key(self) -> str:
        return self.method.key

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


def measure(
    method: Method,
    task: AllWayTask,
    shots: Sequence[int],
    draws: int,
    seed: int = 0,
    fits: Sequence[Calibration] = (),
    progress: Progress | None = None,
) -> list[Row]:
    """A row per number of shots, with every metric of outcome.METRICS, and another where the method was calibrated.

    A method that takes no support has one row.
    """
    method.prepare_for(task.base_categories)
    queries, base, rows = task.queries, None, []
    if not isinstance(method, JointMethod):  # what its base scores decide is the same for all draws
        base = BaseSide.of(method.table_base_scores(queries), queries, method.query_lengths(queries.activations))
    for count, numbers in plan_draws(method, shots, draws).items():
        failed = nearest_fit(fits, count).failed if fits else ""
        ways = [method, CalibratedMethod(method, fits, count)] if fits and base is not None and not failed else [method]
        measured = []  # per draw, of each way
        for draw in numbers:
            support = task.support(count, seed, draw)
            if isinstance(method, JointMethod):
                found = [_joint_outcome(method, task, support)]
            elif base is not None:
                found = _outcomes(ways, base, queries, support.activations)
            measured.append([(outcome.metrics(), outcome.curve()) for outcome in found])
            if progress is not None:
                progress(1)
        label = str(count) if method.uses_support else "all"
        for way, of_way in zip(ways, zip(*measured, strict=True), strict=True):
            metrics, curves = zip(*of_way, strict=True)
            values = {name: [of_draw[name] for of_draw in metrics] for name in metrics[0]}
            mean = np.mean(curves, 0).tolist()
            curve = tuple(sorted(((known, new) for known, new in mean), key=lambda point: point[1] - point[0]))
            rows.append(Row(way, label, values, failed=failed, curve=curve))
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

"""The constant on the novel scores, fitted without looking at a novel category.

Base categories stand in for novel ones: in each of many tasks some of them are learnt from a few examples beside the
means of the others, and the constant with the best harmonic mean over all tasks is taken. But the network was
trained to tell these stand-ins apart, so they are easier than what is novel. So the directions that its classifier
uses for them are taken out of every activation of the task first: what is left is what the network would know of a
category it was never taught. Where the split has validation categories, those are used instead, as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.streams.sampling import STAND_INS, draw_support, generator
from predictor.phi.network import Phi
from predictor.phi.recogniser import Aggregate, nearest_shots, novel_scores
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.evaluation import class_means, is_signed, rows_of, take_float
from predictor.protocol.outcome import BaseSide, Outcome, Queries

AGGREGATES: tuple[Aggregate, ...] = ("max", "mean")
MOST_QUERIES = 4000  # of the base and of the stand-ins in each task
DISCRIMINANT_ROWS = 20_000  # a sample: ten times the dimension of a ResNet-50
Change = Callable[[Tensor], Tensor]  # (n, dim) -> (n, dim)


@dataclass(frozen=True)
class Calibration:
    """novel_bias and aggregate for so many examples per category, and how well they did on the stand-ins (percent).

    curve: (novel, base) top-1 on the stand-ins over `biases`, for the figure.
    """

    shots: int
    aggregate: Aggregate
    novel_bias: float
    harmonic_mean: float
    uncalibrated: float
    fitted_on: str
    curve: dict[str, list[float]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def calibrate(
    phi: Phi,
    train: Split,
    categories: CategorySplit,
    shots: Sequence[int],
    head: Tensor | None = None,
    tasks: int = 20,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[Calibration]:
    """For each number of shots. head: w_large^pt (n_base, dim) in the order of the base categories; without it
    linear discriminants are used."""
    if tasks < 1:
        raise InvalidInputError(f"calibration needs at least one task, got {tasks}")
    found: dict[tuple[int, Aggregate], list[Outcome]] = {}
    directions = None
    if not categories.validation:
        directions = discriminants(train, categories.base) if head is None else head - head.mean(0)
    for number in range(tasks):
        stand_ins = choose_stand_ins(categories, seed, number)
        change = _unlearning(train, categories, stand_ins, directions)
        task = _StandInTask(phi, train, categories.base, stand_ins, max(shots), change, seed, number)
        for count in shots:
            for aggregate in AGGREGATES[: 1 if count == 1 else 2]:
                found.setdefault((count, aggregate), []).append(task.outcome(count, aggregate))
        if progress is not None:
            progress(1)
    how = _describe(categories, head is not None, tasks)
    return [max(_fits(found, count, how), key=lambda fit: fit.harmonic_mean) for count in shots]


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


def _unlearning(
    train: Split, categories: CategorySplit, stand_ins: tuple[str, ...], directions: Tensor | None
) -> Change:
    """What takes the stand-ins' directions out of activations; nothing for validation categories, which are novel."""
    if directions is None:
        return lambda rows: rows
    places = [categories.base.index(name) for name in stand_ins]
    basis = torch.linalg.svd(directions[places], full_matrices=False).Vh  # (n_stand_in, dim)
    centre = class_means(train, categories.base).mean(0)
    return partial(_without, centre=centre, basis=basis, signed=is_signed(train, categories.base))


def _without(rows: Tensor, centre: Tensor, basis: Tensor, signed: bool) -> Tensor:
    """Rows without their part along the basis, about the centre; what is never negative stays so."""
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


class _StandInTask:
    """Some base categories learnt from examples beside the means of the others; what all shots share is done once."""

    def __init__(
        self,
        phi: Phi,
        train: Split,
        base: tuple[str, ...],
        stand_ins: tuple[str, ...],
        most_shots: int,
        change: Change,
        seed: int,
        number: int,
    ) -> None:
        others = tuple(name for name in base if name not in set(stand_ins))
        index = train.class_index
        labels = np.array([index.position(name) for name in stand_ins])
        self._rows = draw_support(index, labels, most_shots, seed, number)
        self._examples = change(take_float(train, self._rows.ravel())).reshape(*self._rows.shape, train.dim)
        base_rows, base_targets = rows_of(train, others, MOST_QUERIES)
        rows, targets = rows_of(train, stand_ins, MOST_QUERIES)
        unseen = ~np.isin(rows, self._rows)
        if not unseen.any():
            raise InvalidInputError(
                f"{most_shots} shots leave no row of the stand-ins to measure on; calibrate with fewer --shots"
            )
        activations = change(take_float(train, np.concatenate([base_rows, rows[unseen]])))
        self._queries = Queries(activations, torch.from_numpy(base_targets), torch.from_numpy(targets[unseen]))
        self._phi = phi
        base_scores = phi.logits(phi(change(class_means(train, others))), activations)
        self._side = BaseSide.of(base_scores, self._queries)

    def outcome(self, shots: int, aggregate: Aggregate) -> Outcome:
        scores = novel_scores(self._phi, self._queries.activations, self._examples[:, :shots], aggregate)
        return Outcome.of(self._side, scores, self._queries)


def _fits(found: dict[tuple[int, Aggregate], list[Outcome]], shots: int, how: str) -> list[Calibration]:
    return [
        fit_bias(outcomes, shots, aggregate, how) for (count, aggregate), outcomes in found.items() if count == shots
    ]


def fit_bias(outcomes: Sequence[Outcome], shots: int, aggregate: Aggregate, how: str = "") -> Calibration:
    """The bias with the highest harmonic mean of base and novel accuracy, both averaged over the outcomes."""
    biases = _candidates(outcomes)
    measured = [outcome.accuracies(biases) for outcome in outcomes]
    base = np.mean([one[0] for one in measured], axis=0)
    novel = np.mean([one[1] for one in measured], axis=0)
    harmonic = 2 * base * novel / np.maximum(base + novel, 1e-12)
    best = int(harmonic.argmax())
    plain = int(np.abs(biases).argmin())
    curve = {"bias": biases, "base": base, "novel": novel}
    thinned = {name: np.round(values[:: max(1, len(biases) // 200)], 4).tolist() for name, values in curve.items()}
    return Calibration(
        shots, aggregate, float(biases[best]), float(harmonic[best]), float(harmonic[plain]), how, thinned
    )


def _candidates(outcomes: Sequence[Outcome]) -> NDArray[np.float64]:
    """Biases at which something changes, thinned to a thousand, and none at all."""
    limits = np.concatenate([part for one in outcomes for part in (one.base_limit, one.novel_limit)])
    finite = np.sort(limits[np.isfinite(limits)])
    if not len(finite):
        return np.zeros(1)
    thinned = np.quantile(finite, np.linspace(0, 1, 1000))
    return np.unique(np.append(thinned, 0.0))


def choose_for(calibrations: Sequence[Calibration], shots: int) -> Calibration:
    """The one for this number of shots, or for the nearest that was fitted."""
    if not calibrations:
        raise InvalidInputError("nothing was calibrated; run `ppa calibrate` first")
    by_shots = {one.shots: one for one in calibrations}
    return by_shots[nearest_shots(by_shots, shots)]


def _describe(categories: CategorySplit, has_head: bool, tasks: int) -> str:
    if categories.validation:
        return f"{len(categories.validation)} validation categories, {tasks} draws"
    part = "the classifier's rows" if has_head else "linear discriminants"
    return f"{tasks} tasks of base categories as stand-ins, {part} taken out"

"""The constant on phi's novel scores, and how its examples are combined, fitted without looking at a novel category.

See `predictor.protocol.stand_ins` for the tasks that it is fitted on, which every method's constant is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from actstore.errors import InvalidInputError
from actstore.split import Split
from predictor.phi.network import Phi
from predictor.phi.recogniser import Aggregate, OwnClassifier, PredictedParameters
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.constant import fit_constant, load_fits, nearest_shots, save_fits
from predictor.protocol.evaluation import class_means
from predictor.protocol.head import Head, head_for
from predictor.protocol.method import Separable
from predictor.protocol.outcome import Outcome
from predictor.protocol.stand_ins import HeldOut, describe, stand_in_tasks, usable

AGGREGATES: tuple[Aggregate, ...] = ("max", "mean")
TASKS = 20  # by default
NAME, FIGURE = "calibration.json", "calibration.png"  # beside phi's weights, where eval and adapt find them


@dataclass(frozen=True)
class Calibration:
    """novel_bias and aggregate for so many examples per category, and how well they did on the stand-ins (percent).

    curve: (novel, base) top-1 on the stand-ins over `biases`, for the figure. held_out, held_out_of: as in `Constant`.
    """

    shots: int
    aggregate: Aggregate
    novel_bias: float
    harmonic_mean: float
    uncalibrated: float
    fitted_on: str
    curve: dict[str, list[float]]
    held_out: float = 0.0
    held_out_of: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def calibrate(
    phi: Phi | Head,
    train: Split,
    categories: CategorySplit,
    shots: Sequence[int],
    head: Tensor | None = None,
    tasks: int = TASKS,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    held_out: HeldOut | None = None,
) -> list[Calibration]:
    """For each number of shots. phi: what is calibrated; a head, whose rows have names, stands for the network's own
    classifier with centred examples beside it. head, held_out: as in `stand_in_tasks`; held-out rows that are too few
    are not used."""
    outcomes: dict[tuple[int, Aggregate], list[Outcome]] = {}
    held_out = usable(held_out, categories, max(shots))
    for task in stand_in_tasks(train, categories, max(shots), head, held_out, tasks, seed):
        means = task.change(class_means(train, task.base))
        for aggregate in AGGREGATES:
            counts = [count for count in shots if count > 1 or aggregate == AGGREGATES[0]]
            method: Separable
            if isinstance(phi, Head):
                method = OwnClassifier(head_for(phi, task.base, train.dim), means, aggregate)
            else:
                method = PredictedParameters(phi, means, aggregate)
            measured = task.outcomes(method, counts)
            for count, outcome in zip(counts, measured, strict=True):
                outcomes.setdefault((count, aggregate), []).append(outcome)
        if progress is not None:
            progress(1)
    how = describe(categories, head is not None, tasks, held_out)
    fits = []
    for count in shots:
        of_count = [fit_bias(outcomes[key], *key, how) for key in outcomes if key[0] == count]
        fits.append(max(of_count, key=lambda fit: fit.harmonic_mean))
    if held_out is None:
        return fits
    return [replace(fit, held_out=held_out.share, held_out_of=held_out.split.content) for fit in fits]


def fit_bias(outcomes: Sequence[Outcome], shots: int, aggregate: Aggregate, how: str = "") -> Calibration:
    """The bias with the highest harmonic mean of base and novel accuracy, both averaged over the outcomes."""
    fit = fit_constant(outcomes)
    return Calibration(shots, aggregate, fit.novel_bias, fit.harmonic_mean, fit.uncalibrated, how, fit.curve)


def choose_for(calibrations: Sequence[Calibration], shots: int) -> Calibration:
    """The one for this number of shots, or for the nearest that was fitted."""
    if not calibrations:
        raise InvalidInputError("nothing was calibrated; run `ppa calibrate` first")
    by_shots = {fit.shots: fit for fit in calibrations}
    return by_shots[nearest_shots(by_shots, shots)]


def save_calibrations(folder: Path, calibrations: Sequence[Calibration]) -> Path:
    return save_fits(folder / NAME, "calibrations", calibrations)


def load_calibrations(folder: Path) -> list[Calibration]:
    """Empty where the phi in this folder was never calibrated."""
    return load_fits(folder / NAME, "calibrations", Calibration, "ppa calibrate", least=1)


def forget_calibrations(folder: Path) -> None:
    """Those of weights that were in this folder before: a constant fits the scores of one phi."""
    for name in (NAME, FIGURE):
        (folder / name).unlink(missing_ok=True)

"""One number added to every novel score, which trades base for novel accuracy; fitted without a novel category.

The same procedure for every method (`predictor.protocol.stand_ins` has the tasks), one record, one file. Methods that
combine several examples in more than one way have the better way found with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, InvalidInputError
from actstore.split import Split
from actstore.storage.atomic_file import write_atomic
from actstore.storage.checksum import check_checksum, with_checksum
from actstore.storage.file_lock import FileLock
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.method import ALL, Aggregate, JointMethod, Method
from predictor.protocol.outcome import Outcome
from predictor.protocol.stand_ins import StandInSource

TASKS = 20  # by default
TOLERATED_LOSS = 0.5  # points on other rows: where no constant is needed, chance decides the sign of a small one
FILE, FIGURE = "calibration.json", "calibration.png"  # in the folder of a training


@dataclass(frozen=True)
class Calibration:
    """Of a method (key, share of D_large) at one number of shots.

    novel_bias is added to novel scores, aggregate is how examples are combined (None: there is one way). harmonic_mean,
    uncalibrated: on the stand-ins, with it and without, in percent. gain: in points, on rows that a constant was not
    fitted on; failed: why the constant is not to be used, empty where it is. fitted_on: in words. content, base: of the
    rows and categories that it was fitted for. held_out: the share of the base rows of a split, whose content is
    held_out_of, that were used and are not to be tested on; 0 for none. curve: (novel, base) top-1 over biases.
    """

    shots: int
    novel_bias: float
    harmonic_mean: float
    uncalibrated: float
    fitted_on: str
    aggregate: Aggregate | None = None
    key: str = ""
    share: str = ALL
    content: str = ""
    base: tuple[str, ...] = ()
    held_out: float = 0.0
    held_out_of: str = ""
    gain: float = 0.0
    failed: str = ""
    curve: dict[str, list[float]] | None = field(default=None, hash=False, repr=False)

    def is_of(self, method: Method, train: Split, categories: CategorySplit) -> bool:
        """Whether it was fitted for this method, on these rows or the first of them, and for these categories: of
        others it says nothing."""
        contents = {train.content, *(content for _, content in train.committed.history), ""}
        same_base = not self.base or set(self.base) == set(categories.base)
        return self.key in (method.key, "") and self.share == method.share and self.content in contents and same_base


def is_calibrated(method: Method) -> bool:
    """Whether a constant can be fitted: base scores that depend on the examples leave nothing to add it to."""
    return not isinstance(method, JointMethod) and method.store is None and method.uses_support


def fit_calibrations(
    methods: Sequence[Method],
    source: StandInSource,
    shots: Sequence[int],
    tasks: int = TASKS,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> list[Calibration]:
    """For every method and each number of shots."""
    found: dict[tuple[int, int, Aggregate | None], list[tuple[Outcome, NDArray[np.bool_]]]] = {}
    shares = [method.share for method in methods]
    for task in source.tasks(tasks, seed):
        for place, method in enumerate(methods):
            trial = copy(method)
            trial.prepare(task.base)
            shares[place] = trial.share
            for number, aggregate in enumerate(method.aggregates or (method.aggregate,)):
                trial.aggregate = aggregate
                counts = [count for count in shots if count > 1 or number == 0]
                for count, outcome in zip(counts, task.outcomes(trial, counts), strict=True):
                    found.setdefault((place, count, aggregate), []).append((outcome, task.is_even.numpy()))
        if progress is not None:
            progress(1)
    how, held_out = source.describe(tasks), source.held_out
    fits = []
    for place, method in enumerate(methods):
        for count in shots:
            of_count = [_fit(found[key], count, key[2]) for key in found if key[:2] == (place, count)]
            fits.append(replace(
                max(of_count, key=lambda fit: fit.harmonic_mean), fitted_on=how, key=method.key or method.name,
                share=shares[place], content=source.train.content, base=source.categories.base,
                held_out=0.0 if held_out is None else held_out.share,
                held_out_of="" if held_out is None else held_out.split.content,
            ))  # fmt: skip
    return fits


def _fit(found: Sequence[tuple[Outcome, NDArray[np.bool_]]], shots: int, aggregate: Aggregate | None) -> Calibration:
    outcomes = [outcome for outcome, _ in found]
    fit = fit_constant(outcomes)
    gain = _gain_elsewhere(found)
    failed = "" if gain >= -TOLERATED_LOSS else f"on rows that it was not fitted on it loses {-gain:.1f} points"
    return replace(fit, shots=shots, aggregate=aggregate, gain=round(gain, 3), failed=failed)


def _gain_elsewhere(found: Sequence[tuple[Outcome, NDArray[np.bool_]]]) -> float:
    """Of the harmonic mean, in points: fitted on one half of the rows, tried on the other, both ways."""
    halves = [[outcome.of_queries(even if first else ~even) for outcome, even in found] for first in (True, False)]
    gains = []
    for ours, others in (halves, halves[::-1]):
        bias = fit_constant(ours).novel_bias
        without, with_it = _harmonic_means(others, np.array([0.0, bias]))[2]
        gains.append(with_it - without)
    return float(np.mean(gains))


def fit_constant(outcomes: Sequence[Outcome]) -> Calibration:
    """The bias with the highest harmonic mean of base and novel accuracy, both averaged over the outcomes."""
    biases = _candidates(outcomes)
    base, novel, harmonic = _harmonic_means(outcomes, biases)
    best, plain = int(harmonic.argmax()), int(np.abs(biases).argmin())
    curve = {"bias": biases, "base": base, "novel": novel}
    thinned = {name: np.round(values[:: max(1, len(biases) // 200)], 4).tolist() for name, values in curve.items()}
    return Calibration(0, float(biases[best]), float(harmonic[best]), float(harmonic[plain]), "", curve=thinned)


def _harmonic_means(
    outcomes: Sequence[Outcome], biases: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Base and novel accuracy at each bias, averaged over the outcomes, and their harmonic mean."""
    measured = [outcome.accuracies(biases) for outcome in outcomes]
    base = np.mean([accuracies[0] for accuracies in measured], axis=0)
    novel = np.mean([accuracies[1] for accuracies in measured], axis=0)
    return base, novel, 2 * base * novel / np.maximum(base + novel, 1e-12)


def _candidates(outcomes: Sequence[Outcome]) -> NDArray[np.float64]:
    """Biases at which something changes, thinned to a thousand, and none at all."""
    limits = np.concatenate([part for outcome in outcomes for part in (outcome.base_limit, outcome.novel_limit)])
    finite = np.sort(limits[np.isfinite(limits)])
    if not len(finite):
        return np.zeros(1)
    thinned = np.quantile(finite, np.linspace(0, 1, 1000))
    return np.unique(np.append(thinned, 0.0))


def nearest_shots(fitted: Iterable[int], shots: int) -> int:
    """This number of shots, or the nearest that was fitted; of two the lower."""
    return min(fitted, key=lambda one: (abs(one - shots), one))


def nearest_fit(fits: Sequence[Calibration], shots: int) -> Calibration:
    """The one for this number of shots, or for the nearest that was fitted."""
    if not fits:
        raise InvalidInputError("nothing was calibrated; run `ppa calibrate` first")
    by_shots = {fit.shots: fit for fit in fits}
    return by_shots[nearest_shots(by_shots, shots)]


def save_calibrations(folder: Path, fits: Sequence[Calibration]) -> Path:
    """In the place of those of the same methods; those of others stay."""
    replaced = {(fit.key, fit.share) for fit in fits}
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder, must_exist=True):  # what others keep meanwhile is read under the lock
        others = [fit for fit in load_calibrations(folder) if (fit.key, fit.share) not in replaced]
        document = with_checksum({"calibrations": [asdict(fit) for fit in (*others, *fits)]})
        write_atomic(folder / FILE, json.dumps(document, indent=1).encode())
    return folder / FILE


def load_calibrations(folder: Path) -> list[Calibration]:
    """Empty where nothing in this folder was calibrated."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        listed = check_checksum(json.loads(path.read_text("utf-8")))["calibrations"]
        if not all(math.isfinite(fit["novel_bias"]) for fit in listed):
            raise ValueError("a bias must be finite")
        return [replace(fit, base=tuple(fit.base)) for fit in (Calibration(**fields) for fields in listed)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: {error}; make it again with `ppa calibrate`") from error


def forget_calibrations(folder: Path) -> None:
    """Those of weights that were in this folder before: a constant fits the scores of one training."""
    for name in (FILE, FIGURE):
        (folder / name).unlink(missing_ok=True)

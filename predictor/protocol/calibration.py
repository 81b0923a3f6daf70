"""One number added to every novel score, which trades base for novel accuracy; fitted without a novel category.

The same procedure for every method (`predictor.protocol.stand_ins` has the tasks), one record, one file. Methods that
combine several examples in more than one way have the better way found with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError, InvalidInputError
from actstore.progress import note
from actstore.split import Split
from actstore.storage.atomic_file import FileLock, check_checksum, with_checksum, write_atomic
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.method import ALL, Aggregate, JointMethod, Method
from predictor.protocol.outcome import Outcome
from predictor.protocol.results import Table
from predictor.protocol.stand_ins import StandInSource

TASKS = 20  # by default
MOST_POOR = 0.25  # of the categories may have too few rows to stand in, where numbers of shots are not given
# Points below the best constant on tasks that it was not fitted on; fewer than the 1.5 that are accepted in the test,
# where novel categories may be unlike those that stand in. Of 1,281 constants on generated rows, limits of 1, 1.25 and
# 1.5 points missed 27, 43 and 70 that were worse in the test, and refused 488, 294 and 164 that were not.
MOST_SHORTFALL = 1.25
# Of the best harmonic mean of stand-ins that the network was trained on: they ask for too low a constant, so that the
# highest is taken with which they lose no more. Mini-ImageNet's 16 validation categories, 8 methods, 1, 3 and 5 shots:
# 0.4 points below the best constant in the mean and 1.0 at most; with nothing given 1.7 and 6.0.
GIVEN, MOST_GIVEN = 0.05, 1.5  # a share, and points
# Validation categories all stand in in every task, so that the check cannot see how much categories differ. With 3 of
# them 11 of 24 constants were 1.5 to 3.9 points short in the test, and the check missed 4 of these.
FEWEST_VALIDATION = 5
NOT_FITTED = "no constant was fitted"  # so begins `Calibration.failed` of a number of shots without one
TRAINED_ON_THEM = "; the method was trained on the stand-ins"  # where the network was not, or nobody knows
Numbers = NDArray[np.int64]
FILE, FIGURE = CALIBRATION_FILES = "calibration.json", "calibration.png"  # in the folder of a training


@dataclass(frozen=True)
class Calibration:
    """The constant that was fitted for a method and a number of examples.

    Attributes:
        shots: number of examples.
        novel_bias: the constant, which is added to every novel score.
        harmonic_mean: of base and novel accuracy on the stand-ins with the constant, in percent.
        uncalibrated: the same without a constant.
        fitted_on: what it was fitted on, in words.
        aggregate: how examples are combined; None where the method knows one way.
        key: the method.
        share: how much of D_large the method was asked to use; one that takes a sample of many rows may use less.
        content: the content of the rows it was fitted for.
        base: the base categories it was fitted for.
        held_out: the share of a split's base rows that were used for fitting and are not to be tested on.
        held_out_of: the content of that split.
        gain: what a constant gains on a task that it was not fitted on, in points of the harmonic mean.
        shortfall: how many points it is below the best constant of a task that it was not fitted on. Both are means
            over tasks; for each the constant is the one with the best harmonic mean on all tasks, without the images of
            the categories that stand in in this one. Where the network was trained on these, `novel_bias` may be higher
            than that.
        failed: why no table shows a row with the constant; empty where one does.
        curve: base and novel accuracy for many values of the constant.
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
    shortfall: float = 0.0
    failed: str = ""
    curve: dict[str, list[float]] | None = field(default=None, hash=False, repr=False)

    @property
    def helps(self) -> bool:
        """Whether a classifier in use is better with the constant than with none, be it far from the best one."""
        return not self.failed or self.gain > 0

    def is_of(self, method: Method, train: Split, categories: CategorySplit) -> bool:
        """Say whether it was fitted for this method, on these rows or the first of them, and for these categories.

        Args:
            method: the method that is measured.
            train: the split that examples come from.
            categories: base and novel categories.
        """
        contents = {train.content, *(content for _, content in train.committed.history), ""}
        same_base = not self.base or set(self.base) == set(categories.base)
        return self.key in (method.key, "") and self.share == method.share and self.content in contents and same_base


class Calibrations(list[Calibration]):
    """The constants of some methods: a list that shows itself as a table.

    Examples:
        >>> fits = predictor.calibrate(phi, store, split, shots=1, tasks=2)
        >>> print(str(fits).split()[:3])
        ['method', 'D_large', 'shots']
    """

    def table(self) -> Table:
        """Make the table that is shown."""
        header = ["method", "D_large", "shots", "aggregate", "novel bias", "harmonic mean without", "with",
                  "on other tasks"]  # fmt: skip
        lines = [
            [fit.key, fit.share, str(fit.shots), fit.aggregate or "", f"{fit.novel_bias:+.4g}",
             f"{fit.uncalibrated:.1f}", f"{fit.harmonic_mean:.1f}",
             f"failed: {fit.failed}" if fit.failed else f"{fit.gain:+.1f}"]
            for fit in self
        ]  # fmt: skip
        return Table(header, lines, named=len(header))

    @property
    def fitted_on(self) -> str:
        """What they were fitted on, in words; with the methods where it is not the same for all."""
        keys: dict[str, dict[str, None]] = {}
        for fit in self:
            keys.setdefault(fit.fitted_on, {})[fit.key] = None
        return "; ".join(f"{', '.join(of)}: " * (len(keys) > 1) + f"fitted on {text}" for text, of in keys.items())

    def __repr__(self) -> str:
        return self.table().to_text()

    def _repr_html_(self) -> str:
        return self.table().to_html()


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
    found: dict[tuple[int, int, Aggregate | None], list[Tried]] = {}
    names = (*source.categories.base, *source.categories.validation)
    for task in source.tasks(tasks, seed):
        asked = *task.categories_asked(names), task.as_in_test
        for place, method in enumerate(methods):
            trial = copy(method)
            trial.prepare_for(task.base)
            for number, aggregate in enumerate(method.aggregates or (method.aggregate,)):
                trial.aggregate = aggregate
                counts = [count for count in shots if count > 1 or number == 0]
                for count, outcome in zip(counts, task.outcomes(trial, counts), strict=True):
                    found.setdefault((place, count, aggregate), []).append(Tried(outcome, *asked))
        if progress is not None:
            progress(1)
    how, held_out, few = source.describe(tasks), source.held_out, _too_few(source)
    are_new = not source.knows_base and not source.categories.validation  # to the network
    fits = []
    for place, method in enumerate(methods):
        for count in shots:
            of_count = [
                _fit(found[key], count, key[2], GIVEN * source.knows_base) for key in found if key[:2] == (place, count)
            ]
            best = max(of_count, key=lambda fit: fit.harmonic_mean)  # a worse way that holds is no way out
            fits.append(replace(
                best, fitted_on=how + TRAINED_ON_THEM * (are_new and method.trained_on_base), key=method.key,
                share=method.share, failed=few or best.failed, content=source.train.content,
                base=source.categories.base, held_out=0.0 if held_out is None else held_out.share,
                held_out_of="" if held_out is None else held_out.split.content,
            ))  # fmt: skip
    return fits


def _too_few(source: StandInSource) -> str:
    count = len(source.categories.validation) - len(source.too_poor)
    if not source.categories.validation or count >= FEWEST_VALIDATION:
        return ""
    return f"only {count} validation categories stand in, {FEWEST_VALIDATION} are needed"


def _fit(found: Sequence[Tried], shots: int, aggregate: Aggregate | None, given: float = 0.0) -> Calibration:
    gain, shortfall = _elsewhere(found)
    failed = ""
    if shortfall > MOST_SHORTFALL:
        failed = f"{shortfall:.1f} points below the best constant on tasks that it was not fitted on"
    fit = fit_constant([tried.outcome for tried in found], given)
    return replace(
        fit, shots=shots, aggregate=aggregate, gain=round(gain, 3), shortfall=round(shortfall, 3), failed=failed
    )


@dataclass(frozen=True)
class Tried:
    """What a method got right in a task. base, novel: (n_query,) numbers of the categories that queries are of, which
    are the same in all tasks. stand_ins: those that stand in. as_in_test: as in `StandInTask`."""

    outcome: Outcome
    base: Numbers
    novel: Numbers
    stand_ins: Numbers
    as_in_test: NDArray[np.bool_]


def _elsewhere(found: Sequence[Tried]) -> tuple[float, float]:
    """What a constant is worth on a task that it was not fitted on: the gain over no constant, and by how much it is
    below the best one of this task, in points of the harmonic mean; both are means over tasks. It is fitted on all
    tasks, without the images of the categories that stand in in this one."""
    biases = _candidates([tried.outcome for tried in found])
    right, asked = _by_category(found, biases)
    plain, gains, left = int(np.abs(biases).argmin()), [], []
    for tried in found:
        theirs, count = (part.sum(1) - part[:, tried.stand_ins].sum(1) for part in (right, asked))
        if not count.all():  # in all tasks the same categories stand in
            own_right, own = _by_category([tried], biases) if len(found) > 1 else (right[:, :0], asked[:, :0])
            theirs, count = right.sum(1) - own_right.sum(1), asked.sum(1) - own.sum(1)
        fitted = _middle_of_best(_harmonic(*(theirs / count[:, None])))
        reached = _harmonic(*tried.outcome.of_queries(tried.as_in_test).accuracies(biases))
        gains.append(reached[fitted] - reached[plain])
        left.append(reached.max() - reached[fitted])
    return float(np.mean(gains)), float(np.mean(left))


def _by_category(found: Sequence[Tried], biases: NDArray[np.float64]) -> tuple[Numbers, Numbers]:
    """(2, n_category, n_bias) how many base and novel queries of each category are right with each bias, in all tasks,
    and (2, n_category) of how many."""
    # a stand-in may be asked nothing about, where queries are thinned
    named = [numbers for tried in found for numbers in (tried.base, tried.novel, tried.stand_ins)]
    categories = 1 + max(int(numbers.max(initial=0)) for numbers in named)
    changes = np.zeros((2, categories, len(biases) + 1), np.int64)
    for tried in found:
        sides = (tried.outcome.base_limit, tried.base), (tried.outcome.novel_limit, tried.novel)
        for of_side, (limits, of) in zip(changes, sides, strict=True):
            np.add.at(of_side, (of, np.searchsorted(biases, limits, side="right")), 1)
    asked, right = changes.sum(2), changes.cumsum(2)[:, :, :-1]
    right[0] = asked[0][:, None] - right[0]  # a base query is right up to its limit, a novel one above
    return right, asked


def fit_constant(outcomes: Sequence[Outcome], given: float = 0.0) -> Calibration:
    """The bias with the highest harmonic mean of base and novel accuracy, both averaged over the outcomes; or the
    highest bias with which no more than this share of it is given away, nor more points than a constant may lose
    elsewhere, and nothing of what there is without one."""
    biases = _candidates(outcomes)
    base, novel = np.mean([outcome.accuracies(biases) for outcome in outcomes], axis=0)
    harmonic = _harmonic(base, novel)
    plain = int(np.abs(biases).argmin())
    best = _middle_of_best(harmonic)
    if given:
        allowed = min(given * harmonic.max(), MOST_GIVEN)
        best = int(np.flatnonzero(harmonic >= max(harmonic.max() - allowed, harmonic[plain]))[-1])
    curve = {"bias": biases, "base": base, "novel": novel}
    thinned = {name: np.round(values[:: max(1, len(biases) // 200)], 4).tolist() for name, values in curve.items()}
    return Calibration(0, float(biases[best]), float(harmonic[best]), float(harmonic[plain]), "", curve=thinned)


def _harmonic(base: NDArray[np.float64], novel: NDArray[np.float64]) -> NDArray[np.float64]:
    return 2 * base * novel / np.maximum(base + novel, 1e-12)


def _middle_of_best(harmonic: NDArray[np.float64]) -> int:
    """The place of the maximum; of several the middle one, from which it is farthest to where others begin."""
    best = np.flatnonzero(harmonic == harmonic.max())
    return int(best[len(best) // 2])


def _candidates(outcomes: Sequence[Outcome]) -> NDArray[np.float64]:
    """Biases at which something changes, thinned to a thousand, and none at all."""
    limits = np.concatenate([part for outcome in outcomes for part in (outcome.base_limit, outcome.novel_limit)])
    finite = np.sort(limits[np.isfinite(limits)])
    if not len(finite):
        return np.zeros(1)
    thinned = np.quantile(finite, np.linspace(0, 1, 1000))
    return np.unique(np.append(thinned, 0.0))


def count_shots(shots: int) -> str:
    return "1 shot" if shots == 1 else f"{shots} shots"


def nearest_shots(fitted: Iterable[int], shots: int) -> int:
    """This number of shots, or the nearest that was fitted; of two the lower."""
    return min(fitted, key=lambda one: (abs(one - shots), one))


def nearest_fit(fits: Sequence[Calibration], shots: int) -> Calibration:
    """The one for this number of shots, or for the nearest that was fitted."""
    if not fits:
        raise InvalidInputError("nothing was calibrated; run `ppa calibrate` first")
    by_shots = {fit.shots: fit for fit in fits}
    return by_shots[nearest_shots(by_shots, shots)]


def require_keys(methods: Iterable[Method]) -> None:
    """Refuse methods that would get each other's constants, which are kept by these words; of one that combines
    examples in several ways, each way may be there."""
    found: dict[tuple[Any, ...], Method] = {}
    for method in methods:
        first = found.setdefault((method.key, method.share, method.folder, method.aggregate), method)
        if first is not method:
            raise InvalidInputError(
                f"two methods have the key {method.key!r}, by which constants are kept: {first.name} and "
                f"{method.name}; name each once, or give them different keys (method.key = …)"
            )


def is_replaced(kept: Calibration, shots: Collection[int], content: str, base: Collection[str]) -> bool:
    """By constants of the same method for these shots; with those of other rows or categories it cannot stay."""
    return kept.shots in shots or kept.content != content or set(kept.base) != set(base)


def keys_replaced(
    methods: Iterable[Method], folder: Path, shots: Collection[int], rows: Split, categories: CategorySplit
) -> list[str]:
    """Of those of these methods whose constants in the folder new ones for these shots would take the place of."""
    keys = sorted({method.key for method in methods})
    try:
        kept = load_calibrations(folder)
    except DamagedError:  # whose they are is not known
        return keys
    gone = {fit.key for fit in kept if is_replaced(fit, shots, rows.content, categories.base)}
    return [key for key in keys if gone & {key, ""}]


def save_calibrations(folder: Path, fits: Sequence[Calibration], shown: bool | None = None) -> list[Calibration]:
    """In the place of those that are returned; other methods' stay, and those for other shots on the same rows."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder, must_exist=True):  # what others keep meanwhile is read under the lock
        try:
            before = load_calibrations(folder)
        except DamagedError:  # what was fitted is not lost with what was kept
            note(f"{folder / FILE} was damaged: no constant that was in it is kept", shown)
            before = []
        gone = [kept for kept in before if any(_is_replaced_by(kept, fit) for fit in fits)]
        stay = [kept for kept in before if kept not in gone]
        document = with_checksum({"calibrations": [asdict(fit) for fit in (*stay, *fits)]})
        write_atomic(folder / FILE, json.dumps(document, indent=1).encode())
    return gone


def _is_replaced_by(kept: Calibration, fit: Calibration) -> bool:
    """Of the same method; one that was kept without a key is of the only method in its folder."""
    same = kept.key in (fit.key, "") and kept.share == fit.share
    return same and is_replaced(kept, (fit.shots,), fit.content, fit.base)


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
        raise DamagedError(f"{path} is damaged: {error}; make it again with `ppa calibrate` and --force") from error


def forget_calibrations(folder: Path) -> None:
    """Those of weights that were in this folder before: a constant fits the scores of one training."""
    for name in (FILE, FIGURE):
        (folder / name).unlink(missing_ok=True)

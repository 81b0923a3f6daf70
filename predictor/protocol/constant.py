"""The constant on novel scores that does best over many outcomes, and the constants of baselines in a file.

By number of shots a method has its own: one number added to every novel score trades base for novel accuracy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from actstore.errors import DamagedError
from actstore.storage.atomic_file import write_atomic
from actstore.storage.checksum import sealed, unsealed
from predictor.protocol.outcome import Outcome

Fitted = TypeVar("Fitted")
FILE = "constants.json"  # in the folder of baselines' trainings


@dataclass(frozen=True)
class Fit:
    """The best bias and its harmonic mean (percent), the one without any, and (novel, base) top-1 over the biases."""

    novel_bias: float
    harmonic_mean: float
    uncalibrated: float
    curve: dict[str, list[float]]


def fit_constant(outcomes: Sequence[Outcome]) -> Fit:
    """The bias with the highest harmonic mean of base and novel accuracy, both averaged over the outcomes."""
    biases = _candidates(outcomes)
    measured = [outcome.accuracies(biases) for outcome in outcomes]
    base = np.mean([accuracies[0] for accuracies in measured], axis=0)
    novel = np.mean([accuracies[1] for accuracies in measured], axis=0)
    harmonic = 2 * base * novel / np.maximum(base + novel, 1e-12)
    best = int(harmonic.argmax())
    plain = int(np.abs(biases).argmin())
    curve = {"bias": biases, "base": base, "novel": novel}
    thinned = {name: np.round(values[:: max(1, len(biases) // 200)], 4).tolist() for name, values in curve.items()}
    return Fit(float(biases[best]), float(harmonic[best]), float(harmonic[plain]), thinned)


def _candidates(outcomes: Sequence[Outcome]) -> NDArray[np.float64]:
    """Biases at which something changes, thinned to a thousand, and none at all."""
    limits = np.concatenate([part for outcome in outcomes for part in (outcome.base_limit, outcome.novel_limit)])
    finite = np.sort(limits[np.isfinite(limits)])
    if not len(finite):
        return np.zeros(1)
    thinned = np.quantile(finite, np.linspace(0, 1, 1000))
    return np.unique(np.append(thinned, 0.0))


@dataclass(frozen=True)
class Constant:
    """Of a method (key, share of D_large) at one number of shots, on the rows and categories that it was fitted for.

    held_out: the share of the base rows of a split, whose content is held_out_of, that were used and are not to be
    tested on; 0 for none.
    """

    key: str
    share: str
    shots: int
    novel_bias: float
    harmonic_mean: float
    uncalibrated: float
    fitted_on: str
    content: str
    base: tuple[str, ...]
    held_out: float = 0.0
    held_out_of: str = ""


def nearest_shots(fitted: Iterable[int], shots: int) -> int:
    """This number of shots, or the nearest that was fitted; of two the lower."""
    return min(fitted, key=lambda one: (abs(one - shots), one))


def save_constants(folder: Path, constants: Sequence[Constant]) -> Path:
    return save_fits(folder / FILE, "constants", constants)


def load_constants(folder: Path) -> list[Constant]:
    """Empty where no baseline was calibrated."""
    constants = load_fits(folder / FILE, "constants", Constant, "ppa calibrate --methods")
    return [replace(constant, base=tuple(constant.base)) for constant in constants]


def save_fits(path: Path, field: str, fits: Sequence[Any]) -> Path:
    write_atomic(path, json.dumps(sealed({field: [asdict(fit) for fit in fits]}), indent=1).encode())
    return path


def load_fits(path: Path, field: str, make: Callable[..., Fitted], command: str, least: int = 0) -> list[Fitted]:
    """What `save_fits` wrote, at least so many; empty where there is no such file. command: makes it again."""
    if not path.exists():
        return []
    try:
        document = json.loads(path.read_text("utf-8"))
        listed = document if isinstance(document, list) else unsealed(document)[field]  # a list: before checksums
        if len(listed) < least or not all(math.isfinite(fit["novel_bias"]) for fit in listed):
            raise ValueError(f"expected {least} {field} or more, with a finite bias each")
        return [make(**fit) for fit in listed]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: {error}; make it again with `{command}`") from error

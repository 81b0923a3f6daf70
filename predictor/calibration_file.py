"""Calibrations of a phi, kept beside its weights, so that eval and adapt find them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from actstore.errors import DamagedError
from actstore.files import write_atomic
from predictor.calibrate import Calibration

NAME, FIGURE = "calibration.json", "calibration.png"


def save_calibrations(folder: Path, calibrations: Sequence[Calibration]) -> Path:
    text = json.dumps([one.to_json() for one in calibrations], indent=1)
    write_atomic(folder / NAME, text.encode())
    return folder / NAME


def forget_calibrations(folder: Path) -> None:
    """Those of weights that were in this folder before: a constant fits the scores of one phi."""
    for name in (NAME, FIGURE):
        (folder / name).unlink(missing_ok=True)


def load_calibrations(folder: Path) -> list[Calibration]:
    """Empty where the phi in this folder was never calibrated."""
    path = folder / NAME
    if not path.exists():
        return []
    try:
        return [Calibration(**one) for one in json.loads(path.read_text("utf-8"))]
    except (ValueError, TypeError) as error:
        raise DamagedError(f"{path} is damaged: {error}; make it again with `ppa calibrate`") from error

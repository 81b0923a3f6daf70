"""Calibrations of a phi, kept beside its weights, so that eval and adapt find them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from actstore.errors import DamagedError
from actstore.storage.atomic_file import write_atomic
from actstore.storage.checksum import sealed, unsealed
from predictor.phi.calibration import Calibration

NAME, FIGURE = "calibration.json", "calibration.png"


def save_calibrations(folder: Path, calibrations: Sequence[Calibration]) -> Path:
    text = json.dumps(sealed({"calibrations": [one.to_json() for one in calibrations]}), indent=1)
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
        found = json.loads(path.read_text("utf-8"))
        listed = found if isinstance(found, list) else unsealed(found)["calibrations"]  # a list: before checksums
        calibrations = [Calibration(**one) for one in listed]
        if not calibrations or not all(math.isfinite(one.novel_bias) for one in calibrations):
            raise ValueError("expected at least one calibration, with a finite bias")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: {error}; make it again with `ppa calibrate`") from error
    return calibrations

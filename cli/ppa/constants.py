"""Constants on novel scores, as commands fit them and find them again, and the rows that they were fitted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cli.group import table
from cli.ppa.recognition import find_test_split
from cli.progress import progress

if TYPE_CHECKING:
    from actstore import ActivationStore
    from baselines.registry import Setting
    from predictor.phi.calibration import Calibration
    from predictor.protocol.constant import Constant
    from predictor.protocol.evaluation import AllWayTask
    from predictor.protocol.stand_ins import HeldOut


def held_out_of(store: ActivationStore, train: str, named: str | None) -> HeldOut | None:
    """A share of the split that is tested on, which the network was not trained on. named: a split, or none."""
    from predictor.protocol.stand_ins import HeldOut

    found = None if named == "none" else find_test_split(store, train, named)
    return None if found is None else HeldOut(found)


def fit_baselines(
    names: str, setting: Setting, shots: Sequence[int], tasks: int, seed: int, held_out: HeldOut | None
) -> list[Constant]:
    from baselines.calibration import CALIBRATED, calibrate_baselines

    chosen = CALIBRATED if names == "all" else [name.strip() for name in names.split(",")]
    with progress("calibrate", tasks, "tasks") as bar:
        return calibrate_baselines(chosen, setting, shots, tasks, seed, bar.update, held_out)


def describe_constants(path: Path, constants: Sequence[Constant]) -> str:
    rows = [
        [one.key, one.share, one.shots, f"{one.novel_bias:+.4g}", f"{one.uncalibrated:.1f}", f"{one.harmonic_mean:.1f}"]
        for one in constants
    ]
    head = table(["method", "D_large", "shots", "novel bias", "harmonic mean without", "with"], rows)
    how = constants[0].fitted_on if constants else "nothing"
    return f"{head}\nfitted on {how} (their figures, not those of novel categories); {path}"


def without_fitted_rows(task: AllWayTask, fits: Sequence[Constant | Calibration]) -> tuple[AllWayTask, str | None]:
    """The task without the rows that these constants were fitted on, for all methods alike, and a line that says so."""
    from predictor.protocol.stand_ins import HeldOut

    # what an earlier content of the split held are its first rows
    rows_then = {task.test.content: len(task.test)} | {content: count for count, content in task.test.committed.history}
    used = {(one.held_out, rows_then[one.held_out_of]) for one in fits if one.held_out_of in rows_then}
    rows = sorted({row for share, first in used for row in HeldOut(task.test, share, first).rows(task.base).tolist()})
    if not rows:
        return task, None
    said = f"constants were fitted on {len(rows):,} rows of the base in {task.test.name}: no method is tested on those"
    return replace(task, without=tuple(rows)), said

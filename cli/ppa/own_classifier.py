"""`--base head`: the network's own classifier with centred examples beside it, for eval, calibrate and adapt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.ppa.constants import held_out_of
from cli.progress import progress

if TYPE_CHECKING:
    from actstore import ActivationStore, Split
    from predictor.phi.calibration import Calibration
    from predictor.protocol.category_split import CategorySplit
    from predictor.protocol.evaluation import AllWayTask
    from predictor.protocol.head import Head
    from predictor.protocol.method import Method


@dataclass(frozen=True)
class OwnHead:
    """head: rows of the base categories, in their order. fits: constants on novel scores, by number of shots."""

    head: Head
    fits: Sequence[Calibration]

    def contestants(self, task: AllWayTask) -> list[tuple[Method, AllWayTask]]:
        """As it is, and calibrated where it was."""
        from predictor.phi.recogniser import OwnClassifier
        from predictor.protocol.evaluation import class_means

        means = class_means(task.train, task.base)
        found: list[tuple[Method, AllWayTask]] = [(OwnClassifier(self.head, means), task)]
        if self.fits:
            settings = {fit.shots: (fit.aggregate, fit.novel_bias) for fit in self.fits}
            found.append((OwnClassifier(self.head, means, settings=settings, fitted_on=self.fits[0].fitted_on), task))
        return found


def own_head(path: Path | None, rows: Split) -> Head:
    """From a file, else that of the network that the store names."""
    from actstore.extraction.recorded_network import load_recorded, network_of
    from predictor.protocol.head import head_of, read_head

    if path is not None:
        return read_head(path)
    record = network_of(rows)
    if not record.get("backbone"):
        raise click.UsageError(
            f"--base head needs the network's classifier, and {rows.store_path} names no network: say where it is with "
            "--head"
        )
    return head_of(load_recorded(record))


def read_own(head: Path | None, categories: CategorySplit, train: Split) -> Head:
    """Its rows of the base categories, in their order."""
    from predictor.protocol.head import head_for

    return head_for(own_head(head, train), categories.base, train.dim)


def fit_own(
    head: Head, store: ActivationStore, train: Split, categories: CategorySplit, shots: Sequence[int],
    seed: int = 0, tasks: int | None = None, held_out: str | None = None,
) -> list[Calibration]:  # fmt: skip
    """Linear discriminants are taken out, not the classifier's own rows, which are what is measured: on mini-ImageNet
    those led to a constant of 2.4 at 1 shot, the discriminants to 2.7, and 3.4 would have been the best."""
    from predictor.phi.calibration import TASKS, calibrate

    rows = held_out_of(store, train.name, held_out)
    with progress("calibrate", tasks or TASKS, "tasks") as bar:
        return calibrate(head, train, categories, shots, None, tasks or TASKS, seed, bar.update, rows)

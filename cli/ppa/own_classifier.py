"""`--base head`: the network's own classifier with centred examples beside it, for eval, calibrate and adapt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from actstore import ActivationStore, Split
from actstore.extraction.recorded_network import load_recorded, network_of
from cli.ppa.recognition import held_out_of
from cli.progress import progress
from predictor.phi.calibration import TASKS, Calibration, calibrate
from predictor.protocol.category_split import CategorySplit
from predictor.protocol.head import Head, head_for, head_of, read_head


def read_own(path: Path | None, categories: CategorySplit, train: Split) -> Head:
    """Rows of the base categories in their order: from a file, else of the network that the store names."""
    record = network_of(train)
    if path is None and not record.get("backbone"):
        raise click.UsageError(
            f"--base head needs the network's classifier, and {train.store_path} names no network: say where it is "
            "with --head"
        )
    head = head_of(load_recorded(record)) if path is None else read_head(path)
    return head_for(head, categories.base, train.dim)


def fit_own(
    head: Head, store: ActivationStore, train: Split, categories: CategorySplit, shots: Sequence[int],
    seed: int = 0, tasks: int = TASKS, held_out: str | None = None,
) -> list[Calibration]:  # fmt: skip
    """Linear discriminants are taken out, not the classifier's own rows, which are what is measured: on mini-ImageNet
    those led to a constant of 2.4 at 1 shot, the discriminants to 2.7, and 3.4 would have been the best."""
    rows = held_out_of(store, train.name, held_out)
    with progress("calibrate", tasks, "tasks") as bar:
        return calibrate(head, train, categories, shots, None, tasks, seed, bar.update, rows)

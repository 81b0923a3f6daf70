"""What checking chunks costs: class means, the first exact search and an export of 100,000 x 2048 fp16.

Both sides take turns in one process, and the order within a turn changes. Without: the chunks count as checked
already, which is all the difference.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import actstore as library
from actstore.compute.measure import Result
from actstore.search.exact import ExactSearch
from actstore.search.index_files import folder
from actstore.split import Split
from actstore.statistics.class_statistics import NAMES, class_statistics
from tests.bench.common import OUT, actstore, features, report

ROWS, ROUNDS, BAR = 100_000, 11, 1.05


def fresh(store: Path, checked: bool) -> Split:
    """A split just opened, with nothing kept of earlier passes."""
    split = library.open(store)["train"]
    for name in NAMES:
        shutil.rmtree(store / "train" / name, ignore_errors=True)
    shutil.rmtree(folder(split), ignore_errors=True)
    _ = split.labels
    rows: Any = split.rows
    rows.checks._done[:] = not checked
    return split


def means(split: Split) -> None:
    class_statistics(split)


def first_search(split: Split) -> None:
    """Norms, which are computed in one pass and kept, and the products of 16 queries."""
    queries = np.random.default_rng(0).random((16, split.dim), dtype=np.float32)
    ExactSearch(split).search(queries, 10)


def export(split: Split) -> None:
    from actstore.tables.exporting import export as write

    with tempfile.TemporaryDirectory(dir=OUT) as place:
        write(split, Path(place, "rows.npy"))


def compare(store: Path, work: Callable[[Split], None], rounds: int) -> dict[str, tuple[float, float]]:
    """Median seconds with and without checks: by the clock, and of the processor, which a busy machine changes less."""
    taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for turn in range(rounds + 1):
        for checked in (True, False) if turn % 2 else (False, True):
            split = fresh(store, checked)
            begin, begin_cpu = time.perf_counter(), time.process_time()
            work(split)
            if turn:  # the first warms up
                taken[checked].append((time.perf_counter() - begin, time.process_time() - begin_cpu))
    medians = [[statistics.median(column) for column in zip(*taken[side], strict=True)] for side in (True, False)]
    return {name: (medians[0][place], medians[1][place]) for place, name in enumerate(("", ", processor time"))}


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    values, labels = features(rows)
    store = OUT / "crc.zarr"
    shutil.rmtree(store, ignore_errors=True)
    actstore("import", values, store, "--labels", labels)
    results = []
    works = {"class means": means, "first exact search, 16 queries": first_search, "export to .npy": export}
    for name, work in works.items():
        for how, (checked, plain) in compare(store, work, ROUNDS).items():
            print(f"{name}{how}: {checked / plain - 1:+.1%}", file=sys.stderr)
            results.append(Result(name + how, checked, "s", "without checks", plain, plain / checked))
    report("crc", results, [f"at most {BAR:.2f} times the time without checks (a ratio of at least {1 / BAR:.3f})"])
    shutil.rmtree(store)


if __name__ == "__main__":
    main()

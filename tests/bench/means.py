"""Class means of 200,000 x 2048 fp16 against flox + dask on the same store, and one plain pass over it; then what
checking chunks costs them, the first exact search and an export: `python -m tests.bench.means [peers checks]`.

With and without checks take turns in one process, and the order within a turn changes. Without: the chunks count as
checked already, which is all the difference.
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

import dask.array
import numpy as np
import torch
from flox import groupby_reduce

import actstore as library
from actstore.compute.process import Result
from actstore.compute.tensors import borrow
from actstore.search import ExactSearch
from actstore.search.index_files import folder
from actstore.split import Split
from actstore.statistics import NAMES, class_statistics
from actstore.tables.exporting import export
from tests.bench.common import OUT, actstore, alternate, features, rate, report

ROWS = 200_000
CHECKED_ROWS, ROUNDS, BAR = 100_000, 20, 1.05


def ours(split: Split) -> None:
    for name in NAMES:
        shutil.rmtree(split.path / name, ignore_errors=True)
    class_statistics(split)


def with_flox(split: Split) -> None:
    array = dask.array.from_zarr(str(split.path / "activations"))
    means, _ = groupby_reduce(
        array.T.astype("f4"), split.labels, func="mean", expected_groups=np.arange(len(split.classes)),
    )  # fmt: skip
    means.compute()


def plain_numpy(split: Split) -> None:
    total = np.zeros(split.dim)
    for block in split.blocks():
        total += block.sum(axis=0, dtype=np.float32)


def plain_torch(split: Split) -> None:
    total = torch.zeros(split.dim)
    for block in split.blocks():
        total += borrow(block).float().sum(dim=0)


def fastest_pass(split: Split) -> None:
    """The fastest sum over all rows we could write: pieces that fit the cache, one reused buffer."""
    total, buffer = torch.zeros(split.dim), torch.empty(1024, split.dim)
    for block in split.blocks(1024):
        part = buffer[: len(block)]
        part.copy_(borrow(block))
        total += part.sum(dim=0)


def peers() -> None:
    results = []
    size = ROWS * 2048 * 2 / 1e9
    for order in ("sorted", "shuffled"):
        values, labels = features(ROWS, shuffled=order == "shuffled")
        store = OUT / "means.zarr"
        shutil.rmtree(store, ignore_errors=True)
        actstore("import", values, store, "--labels", labels)
        split = library.open(store)["train"]
        _ = split.labels
        times = alternate(
            {
                "ours": lambda split=split: ours(split),
                "numpy": lambda split=split: plain_numpy(split),
                "torch": lambda split=split: plain_torch(split),
                "fastest": lambda split=split: fastest_pass(split),
            },
            rounds=5,
        )
        slow = alternate({"ours": lambda split=split: ours(split), "flox": lambda split=split: with_flox(split)}, 2)
        name = f"count, mean, variance; {order} labels"
        results += [
            rate(name, slow["ours"], "flox + dask (mean alone)", slow["flox"], size, "GB/s"),
            rate(name, times["ours"], "plain pass, numpy sum", times["numpy"], size, "GB/s"),
            rate(name, times["ours"], "plain pass, torch sum", times["torch"], size, "GB/s"),
            rate(name, times["ours"], "fastest sum alone we could write", times["fastest"], size, "GB/s"),
        ]
        shutil.rmtree(store)
    report("means", results, [">= 4x flox + dask", ">= 0.5x one plain pass that reads and sums the rows"])


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


def first_search(split: Split) -> None:
    """Norms, which are computed in one pass and kept, and the products of 16 queries."""
    queries = np.random.default_rng(0).random((16, split.dim), dtype=np.float32)
    ExactSearch(split).search(queries, 10)


def to_npy(split: Split) -> None:
    with tempfile.TemporaryDirectory(dir=OUT) as place:
        export(split, Path(place, "rows.npy"))


def compare(store: Path, work: Callable[[Split], Any], rounds: int) -> dict[str, tuple[float, float]]:
    """Median seconds without checks, and by how much of them a turn with checks took longer, the median of the turns:
    by the clock, and of the processor, which a busy machine changes less."""
    taken: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for turn in range(rounds + 1):
        for checked in (True, False) if turn % 2 else (False, True):
            split = fresh(store, checked)
            begin, begin_cpu = time.perf_counter(), time.process_time()
            work(split)
            if turn:  # the first warms up
                taken[checked].append((time.perf_counter() - begin, time.process_time() - begin_cpu))
    found = {}
    for place, name in enumerate(("", ", processor time")):
        pairs = [(one[place], other[place]) for one, other in zip(taken[True], taken[False], strict=True)]
        plain = statistics.median(other for _, other in pairs)
        found[name] = plain, statistics.median(one / other for one, other in pairs)
    return found


def checks() -> None:
    values, labels = features(CHECKED_ROWS)
    store = OUT / "crc.zarr"
    shutil.rmtree(store, ignore_errors=True)
    actstore("import", values, store, "--labels", labels)
    results = []
    works = {"class means": class_statistics, "first exact search, 16 queries": first_search, "export to .npy": to_npy}
    for name, work in works.items():
        for how, (plain, longer) in compare(store, work, ROUNDS).items():
            results.append(Result(name + how, plain * longer, "s", "without checks", plain, 1 / longer))
            print(f"{name}{how}: {longer - 1:+.1%}", file=sys.stderr)
    report("checks", results, [f"at most {BAR:.2f} times the time without checks (a ratio of at least {1 / BAR:.3f})"])
    shutil.rmtree(store)


def main() -> None:
    for part in sys.argv[1:] or ("peers", "checks"):
        {"peers": peers, "checks": checks}[part]()


if __name__ == "__main__":
    main()

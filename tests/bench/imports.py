"""Import of 200,000 x 2048 fp16 against numpy tofile + fsync of the same bytes, and its peak memory."""

from __future__ import annotations

import os
import shutil
import statistics
from pathlib import Path

import numpy as np

from actstore.compute.process import Result, seconds
from actstore.tables.importing import ImportRequest, import_file
from tests.bench.common import OUT, actstore, features, rate, report

ROWS = 200_000


def write_plainly(values: Path, target: Path) -> None:
    """Read the source and write it with tofile, then fsync: what a copy costs on this disk."""
    source = np.load(values, mmap_mode="r")
    with target.open("wb") as file:
        for start in range(0, len(source), 8192):
            source[start : start + 8192].tofile(file)
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    values, labels = features(ROWS)
    size = ROWS * 2048 * 2 / 1e9
    store, plain = OUT / "import.zarr", OUT / "plain.bin"
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    for _ in range(9):
        # Each side overwrites what it left in its last turn, at once: a virtual machine hands memory that
        # has been free for two seconds back to its host, and getting it again costs more than the disk.
        plain.unlink(missing_ok=True)
        times["plain"].append(seconds(lambda: write_plainly(values, plain)))
        shutil.rmtree(store, ignore_errors=True)
        times["ours"].append(seconds(lambda: import_file(ImportRequest(values, labels=labels), store)))
    shutil.rmtree(store)
    plain.unlink()
    _, memory, _ = actstore("import", values, store, "--labels", labels)
    shutil.rmtree(store)
    median = {name: statistics.median(taken) for name, taken in times.items()}
    print({name: [round(size / taken, 2) for taken in each] for name, each in times.items()})
    report(
        "import",
        [
            rate("import 200,000 x 2048 fp16", median["ours"], "numpy tofile + fsync", median["plain"], size, "GB/s"),
            Result("peak memory of `actstore import`", memory / 1e6, "MB"),
        ],
        [">= 0.7x tofile + fsync", "peak memory under 1 GB"],
    )


if __name__ == "__main__":
    main()

"""Opening a store of 1,200,000 rows, taking rows, labels and ids: this tree against an earlier one, in turns.

python -m tests.bench.opening --before TREE [--rows N] [--rounds N]      about two minutes on 2 cores

TREE: a checkout of the earlier code. Every round is a new process of each side, so that the first access is the first;
both read one store, which the earlier code has written. A ratio above 1: this tree is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from actstore.compute.measure import Result
from tests.bench.common import ROOT, report

MAKE = """
import sys
import numpy as np
import actstore

path, rows = sys.argv[1], int(sys.argv[2])
random = np.random.default_rng(0)
values = random.standard_normal((rows, 64), dtype=np.float32).astype(np.float16)
ids = [f"train/n{row % 1000:08d}/n{row % 1000:08d}_{row}.JPEG" for row in range(rows)]
store = actstore.create(path, classes=[str(label) for label in range(1000)], dim=64)
with store.writer("train") as writer:
    writer.append(values, random.integers(0, 1000, rows), ids)
"""
MEASURE = """
import json, sys, time
import numpy as np
import actstore

def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin

def opened():
    return actstore.open(path)["train"]

path = sys.argv[1]
figures = {"first open": seconds(opened)}
split = opened()
figures["first take of 2 rows"] = seconds(lambda: split.take([3, 1]))
figures["first access to labels"] = seconds(lambda: split.labels)
figures["first access to ids"] = seconds(lambda: split.ids)
random = np.random.default_rng(1)
batches = [random.integers(0, len(split), 900) for _ in range(100)]
for batch in batches:
    split.take(batch)                      # pages are in memory from here on

def quick(work, times):                    # what else the machine does lengthens the others
    return sorted(seconds(work) for _ in range(times))[times // 10]

figures["open"] = quick(opened, 100)
figures["open and take of 2 rows"] = quick(lambda: opened().take([3, 1]), 100)
figures["take of 900 random rows"] = sorted(seconds(lambda: split.take(batch)) for batch in batches * 5)[50]
figures["labels of a split opened anew"] = quick(lambda: opened().labels, 10)
figures["ids of a split opened anew"] = quick(lambda: opened().ids, 5)
print(json.dumps(figures))
"""


def run_in(tree: Path, code: str, *arguments: str) -> str:
    """What a child says that imports the packages of this tree."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="TREE")
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    trees = {"before": options.before.resolve(), "after": ROOT}
    taken: dict[str, dict[str, list[float]]] = {side: {} for side in trees}
    with tempfile.TemporaryDirectory(prefix="opening-") as name:
        store = str(Path(name) / "store.zarr")
        run_in(trees["before"], MAKE, store, str(options.rows))
        for number in range(-1, options.rounds):  # the first round writes bytecode and fills memory, and does not count
            for side in list(trees)[:: 1 if number % 2 else -1]:  # neither is always the first
                figures = json.loads(run_in(trees[side], MEASURE, store))
                for what, seconds in figures.items() if number >= 0 else ():
                    taken[side].setdefault(what, []).append(1000 * seconds)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    results = []
    for what, before in taken["before"].items():
        old, new = statistics.median(before), statistics.median(taken["after"][what])
        results.append(Result(what, new, "ms", options.before.name, old, old / new))
    report("opening", results, ["take and open 0.97x or better", "first access to labels at most 15 ms longer"])
    for what, before in taken["before"].items():
        ratios = sorted(old / new for old, new in zip(before, taken["after"][what], strict=True))
        quarter = len(ratios) // 4
        print(f"{what:52s} ratios of the middle half of rounds {ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f}")


if __name__ == "__main__":
    main()

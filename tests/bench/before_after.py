"""Take, means and search of this tree against those of an earlier commit: child processes of both, in turns.

python -m tests.bench.before_after [COMMIT] [--rows N] [--rounds N]      about three minutes on 2 cores

The earlier commit is checked out as a worktree of git for the while. Both sides have a store of their own, written by
the earlier code, so that neither reads what the other keeps beside it; rows are taken from one and the same. A ratio
above 1: this tree is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actstore.bench.measure import Result
from tests.bench.common import ROOT, report

BEFORE_THE_ROOMS = "fd7e807"
MAKE = """
import sys
import numpy as np
import actstore

path, rows, dim = sys.argv[1], int(sys.argv[2]), 2048
random = np.random.default_rng(0)
values = np.empty((rows, dim), np.float16)
for first in range(0, rows, 4096):
    part = values[first : first + 4096]
    part[:] = np.maximum(random.standard_normal(part.shape, dtype=np.float32), 0)
labels = random.integers(0, 100, rows)
actstore.from_arrays(path, {"train": (values, labels)}, classes=[str(label) for label in range(100)])
"""
FIRST_ROWS = """
import sys
import actstore

actstore.open(sys.argv[1])["train"].take([3, 1])
"""
MEASURE = """
import json, shutil, statistics, sys, time
from pathlib import Path
import numpy as np
import actstore

def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin

def means():
    for name in ("class_count", "class_mean", "class_var"):
        shutil.rmtree(Path(path) / "train" / name, ignore_errors=True)
    return seconds(actstore.open(path)["train"].means)

path, common = sys.argv[1:]
train = actstore.open(common)["train"]     # where the same bytes lie in memory decides over a tenth of a take
random = np.random.default_rng(1)
batches = [random.integers(0, len(train), 900) for _ in range(60)]
queries = train.take(random.integers(0, len(train), 32)).astype(np.float32)
for batch in batches:
    train.take(batch)                      # pages are in memory from here on
takes = sorted(seconds(lambda: train.take(batch)) for batch in batches * 5)
figures = {"take of 900 random rows": takes[len(takes) // 10]}  # what else the machine does lengthens the others
train = actstore.open(path)["train"]
means()                                    # imports
figures["means"] = min(means() for _ in range(3))
train.search(queries, k=10)                # norms
figures["exact search, 32 queries"] = statistics.median(seconds(lambda: train.search(queries, k=10)) for _ in range(5))
figures["exact search, 1 query"] = statistics.median(seconds(lambda: train.search(queries[:1], k=10)) for _ in range(5))
print(json.dumps(figures))
"""


def main() -> None:
    options = _options()
    taken: dict[str, dict[str, list[float]]] = {"before": {}, "after": {}}
    with tempfile.TemporaryDirectory(prefix="before-after-") as name, _worktree(options.commit, Path(name)) as earlier:
        trees = {"before": earlier, "after": ROOT}
        stores = {side: Path(name) / f"{side}.zarr" for side in trees}
        run_in(earlier, MAKE, str(stores["before"]), str(options.rows))
        shutil.copytree(stores["before"], stores["after"])
        for number in range(options.rounds):
            for side in list(trees)[:: 1 if number % 2 else -1]:  # neither is always the first
                figures = json.loads(run_in(trees[side], MEASURE, str(stores[side]), str(stores["before"])))
                figures["open and take in a new process"] = _first_rows(trees[side], stores[side])
                for what, seconds in figures.items():
                    taken[side].setdefault(what, []).append(seconds)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    results = []
    for what, before in taken["before"].items():
        old, new = statistics.median(before), statistics.median(taken["after"][what])
        results.append(Result(what, new, "s", options.commit, old, old / new))
    report("before_after", results, ["take, means and search no slower: ratios of 1 within the spread of the rounds"])
    for what, before in taken["before"].items():
        ratios = sorted(old / new for old, new in zip(before, taken["after"][what], strict=True))
        print(f"{what:52s} ratios of the rounds {ratios[0]:.2f} to {ratios[-1]:.2f}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default=BEFORE_THE_ROOMS)
    parser.add_argument("--rows", type=int, default=60_000, help="of 2048 fp16 features")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


@contextmanager
def _worktree(commit: str, folder: Path) -> Iterator[Path]:
    tree = folder / "tree"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _first_rows(tree: Path, store: Path) -> float:
    """Seconds of a whole process that opens a store and takes two rows, the fastest of three."""
    code = f"import time; begin = time.perf_counter()\n{FIRST_ROWS}\nprint(time.perf_counter() - begin)"
    return min(float(run_in(tree, code, str(store))) for _ in range(3))


def run_in(tree: Path, code: str, *arguments: str) -> str:
    """What a child says that imports the packages of this tree."""
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    main()

"""This tree against an earlier one: open, take, ids, means, searches and a step of phi, in turns.

python -m tests.bench.no_slower --before TREE [--rows N] [--rounds N] [--keep FOLDER]     about three minutes on 2 cores

TREE: a checkout of the earlier code, its compiled loops built (python setup.py build_ext --inplace). One process of
each side stays, and they work one after the other, the first to begin changing; both have a copy of a store that the
earlier code has written, and take rows from one and the same. A ratio above 1: this tree is faster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from actstore.compute.process import Result
from tests.bench.common import ROOT, report

COMMAND = "import sys; from cli.actstore import main; main(sys.argv[1:])"
WORKER = """
import shutil, sys, time
from itertools import count
from pathlib import Path
import numpy as np
import torch
import actstore
from predictor.protocol.category_split import alphabetical_split
from predictor.training.phi import PhiTraining
from predictor.training.phi import TrainConfig

path, common = sys.argv[1:]
train, same = (actstore.open(store)["train"] for store in (path, common))
random = np.random.default_rng(1)
queries = same.take(random.integers(0, len(same), 32)).astype(np.float32) + 0.1
steps = {}
numbers = count()

def open_and_take():
    for _ in range(20):
        actstore.open(path)["train"].take([3, 1])

def ids():
    actstore.open(path)["train"].ids

def take():
    for batch in batches:
        same.take(batch)

def means():
    actstore.open(path)["train"].means()

def search(method, many):
    return lambda: train.search(queries[:many], k=10, method=method)

def step():
    if not steps:
        steps["phi2"] = PhiTraining(train, None, alphabetical_split(train.classes), TrainConfig(phi="phi2"),
                                    torch.device("cpu"))
    steps["phi2"].step(next(numbers))

works = {
    "open and take 2 rows, 20 times": open_and_take, "ids of a split just opened": ids,
    "take of 900 random rows, 40 times": take, "class count, mean, variance": means,
    "exact search, 32 queries": search("exact", 32), "exact search, 1 query": search("exact", 1),
    "bounded search, 32 queries": search("bounded", 32), "bounded search, 1 query": search("bounded", 1),
    "a step of phi2": step,
}
print(*works, sep=";", flush=True)
for line in sys.stdin:
    batches = [random.integers(0, len(same), 900) for _ in range(40)]
    if line.strip() == "class count, mean, variance":
        for name in ("class_count", "class_mean", "class_var"):
            shutil.rmtree(Path(path) / "train" / name, ignore_errors=True)
    begin = time.perf_counter()
    works[line.strip()]()
    print(time.perf_counter() - begin, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="TREE")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the stores there, for another run")
    options = parser.parse_args()
    trees = {"before": options.before.resolve(), "after": ROOT}
    kept = options.keep
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory(prefix="no-slower-") as name:
        stores = make_stores(Path(name).resolve(), trees, options.rows)
        workers = {side: start(tree, WORKER, stores[side], stores["before"]) for side, tree in trees.items()}
        works, _ = (said(worker).split(";") for worker in workers.values())
        taken = take_turns(workers, works, options.rounds)
    results = []
    for work, turns in taken.items():
        old, new = (statistics.median(turn[side] for turn in turns) for side in trees)
        results.append(Result(work, 1e3 * new, "ms", options.before.name, 1e3 * old, old / new))
    report("no_slower", results, ["take, means, search and a step of phi no slower: 1 within the spread"])
    for work, turns in taken.items():
        ratios = sorted(turn["before"] / turn["after"] for turn in turns)
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        print(f"{work:40s} {statistics.median(ratios):.2f}x, middle half of the rounds {low:.2f} to {high:.2f}")


def make_stores(folder: Path, trees: dict[str, Path], rows: int) -> dict[str, Path]:
    """Of each side, with a bounded index of its own; the rows are written by the earlier code."""
    folder.mkdir(parents=True, exist_ok=True)
    stores = {side: folder / f"{side}.zarr" for side in trees}
    if not stores["before"].exists():
        finish(start(trees["before"], COMMAND, "synth", stores["before"], "--rows", rows, "--shuffled"))
    for side, store in stores.items():
        if not store.exists():
            shutil.copytree(stores["before"], store)
        finish(start(trees[side], COMMAND, "index", store, "--kind", "bounded"))
    return stores


def start(tree: Path, code: str, *arguments: object) -> subprocess.Popen[str]:
    """A child that imports the packages of this tree."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    return subprocess.Popen(command, cwd=tree, env=environment, **pipes)


def finish(child: subprocess.Popen[str]) -> None:
    child.communicate()
    if child.returncode:
        raise SystemExit(child.returncode)


def said(child: subprocess.Popen[str], asked: str | None = None) -> str:
    """Its next line, after it was asked for it."""
    if child.stdin is not None and asked is not None:
        child.stdin.write(f"{asked}\n")
    line = child.stdout.readline() if child.stdout is not None else ""
    if not line:
        raise SystemExit(f"{child.args} ended")
    return line.strip()


def take_turns(
    workers: dict[str, subprocess.Popen[str]], works: list[str], rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Seconds of both sides for every work and round; the first round warms up and does not count."""
    taken: dict[str, list[dict[str, float]]] = {work: [] for work in works}
    for number in range(rounds + 1):
        for work in works:
            turn = {}
            for side in list(workers)[:: 1 if number % 2 else -1]:
                turn[side] = float(said(workers[side], work))
            if number:
                taken[work].append(turn)
        print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.communicate()
    return taken


if __name__ == "__main__":
    main()

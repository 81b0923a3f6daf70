"""`ppa eval --methods nn,triplet` of this tree against that of an earlier one, in turns, and whether the tables agree.

python -m tests.bench.nearest_tables --before TREE [--rows N] [--dim D] [--queries N] [--rounds N]

TREE: another checkout with its own .venv/bin/ppa. Rows are generated and imported once; each side has a copy of the
store that it alone reads, and Triplet is trained for a few steps once for both. Three kinds of runs of this tree: the
first, which embeds Triplet's rows, without an index; more without an index; and with the bounded index of `actstore
index`, whose first run indexes the embedded rows too. Ratios are of medians; first runs are listed apart.
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
import time
from pathlib import Path

import numpy as np

import actstore
from actstore.bench.measure import Result
from actstore.tables.synthetic import SyntheticSpec
from tests.bench.common import ROOT, report

CLASSES = 1000


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="nearest-tables-", dir=options.scratch) as name:
        folder = Path(name)
        first = folder / "before.zarr"
        _make(first, options.rows, options.dim, options.queries)
        trees = {"before": options.before, "after": ROOT}
        steps = ["--steps", "30", "--out", str(folder / "runs" / "triplet")]
        _run(trees["before"], "ppa", "baseline", "triplet", "--store", str(first), *steps)
        shutil.copytree(first, folder / "after.zarr")
        taken, tables = _take_turns(trees, folder, options)
    results = []
    for what in ("without an index", "with a bounded index"):
        ours, theirs = statistics.median(taken[what]), statistics.median(taken[f"before, beside {what}"])
        results.append(Result(what, ours, "s", "before, in turns", theirs, theirs / ours))
    once = ("first run, embeds", "actstore index", "first run, indexes embedded rows")
    results += [Result(what, taken[what][0], "s") for what in once]
    report("nearest_tables", results, ["5x with a bounded index, 1.5x without; the same table"])
    earlier = tables["before, beside without an index"]
    for what, table in tables.items():
        print(f"table {what}: {'the same' if table == earlier else 'DIFFERENT'}")
        for ours, theirs in zip(table, earlier, strict=True):
            changed = [f"{key} {theirs[key]} -> {ours[key]}" for key in theirs if ours[key] != theirs[key]]
            if changed:
                print(f"  {theirs['method']}, {theirs['shots']} shots: {', '.join(changed)}")


def _take_turns(
    trees: dict[str, Path], folder: Path, options: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, list[dict[str, object]]]]:
    """Seconds of every kind of run, and the table of each."""
    taken: dict[str, list[float]] = {}
    tables: dict[str, list[dict[str, object]]] = {}

    def evaluate(what: str, side: str) -> None:
        arguments = ["--store", str(folder / f"{side}.zarr"), "--runs", str(folder / "runs"), *options.eval.split()]
        begin = time.perf_counter()
        printed = _run(trees[side], "ppa", "eval", "--methods", "nn,triplet", "--json", *arguments)
        taken.setdefault(what, []).append(time.perf_counter() - begin)
        tables[what] = json.loads(printed)
        print(f"{what}: {taken[what][-1]:.1f} s", file=sys.stderr, flush=True)

    evaluate("first run, embeds", "after")
    for _ in range(options.rounds):
        evaluate("before, beside without an index", "before")
        evaluate("without an index", "after")
    begin = time.perf_counter()
    _run(trees["after"], "actstore", "index", str(folder / "after.zarr"), "--split", "train")
    taken["actstore index"] = [time.perf_counter() - begin]
    evaluate("first run, indexes embedded rows", "after")
    for _ in range(options.rounds):
        evaluate("before, beside with a bounded index", "before")
        evaluate("with a bounded index", "after")
    return taken, tables


def _make(path: Path, rows: int, dim: int, queries: int) -> None:
    """Queries are drawn with the rows, and are not among them."""
    spec = SyntheticSpec(rows + queries, dim, min(CLASSES, rows // 20), shuffled=True)
    table, done = spec.table(), 0
    store = actstore.create(path, classes=spec.class_names(), dim=dim)
    for name, stop in (("train", rows), ("val", rows + queries)):
        with store.writer(name) as writer:
            for block in table.activations.blocks(done, stop):
                writer.append(block.astype(np.float16), table.labels[done : done + len(block)])
                done += len(block)


def _run(tree: Path, command: str, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [str(tree / ".venv" / "bin" / command), *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} {arguments[0]} of {tree} failed:\n{done.stderr}")
    return done.stdout


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="TREE")
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=1, help="of each kind; the earlier tree runs twice in each")
    parser.add_argument("--eval", default="", help="more options of `ppa eval`, such as '--draws 5'")
    parser.add_argument("--scratch", type=Path, help="where the stores go: 10 GB at the default size")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""`ppa eval --methods nn,triplet` of this tree against that of an earlier one, in turns, and whether the tables agree.

python -m tests.bench.nearest_tables --before TREE [--rows N] [--dim D] [--queries N] [--rounds N]

TREE: another checkout with its own .venv/bin/ppa. Rows are generated once; each side has a copy of the store that it
alone reads, and Triplet is trained for a few steps once for both. First without an index, then with that of
`actstore index`. The first run of either does what is kept afterwards: it embeds Triplet's rows, or indexes those; the
ratio is given without that, and with it.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import actstore
from actstore.compute.process import Result
from actstore.tables.row_source import SyntheticSpec
from tests.bench.common import ROOT, report

CLASSES = 1000


WITHOUT, WITH = "without an index", "with a bounded index"
EMBEDS, INDEXES = "first run, embeds", "first run, indexes the embedded rows"
BEFORE, INDEX = "before", "actstore index"
Table = list[dict[str, object]]


def main() -> None:
    options = _options()
    with _folder(options.scratch) as folder:
        trees = {"before": options.before, "after": ROOT}
        if not (folder / "after.zarr").exists():
            _prepare(folder, trees["before"], options)
        if options.prepare:
            return
        for what in options.only:
            _compare(what, trees, folder, options)


def _compare(what: str, trees: dict[str, Path], folder: Path, options: argparse.Namespace) -> None:
    """Both trees in turns, after what this one does once."""
    taken: dict[str, list[float]] = {}
    tables: dict[str, Table] = {}

    def evaluate(kind: str, side: str) -> None:
        arguments = ["--store", str(folder / f"{side}.zarr"), "--runs", str(folder / "runs"), "--shots", "1,2,3"]
        arguments += options.eval.split()
        begin = time.perf_counter()
        printed = _run(trees[side], "ppa", "eval", "--methods", "nn,triplet", "--json", *arguments)
        taken.setdefault(kind, []).append(time.perf_counter() - begin)
        lines = json.loads(printed)  # what the paper has beside them is no outcome
        tables[kind] = [{key: line[key] for key in line if not key.startswith("paper_")} for line in lines]
        print(f"{kind}: {taken[kind][-1]:.1f} s", file=sys.stderr, flush=True)

    if what == WITH:
        begin = time.perf_counter()
        _run(trees["after"], "actstore", "index", str(folder / "after.zarr"), "--split", "train")
        taken[INDEX] = [time.perf_counter() - begin]
    evaluate(INDEXES if what == WITH else EMBEDS, "after")
    for _ in range(options.rounds):
        evaluate(BEFORE, "before")
        evaluate(what, "after")
    ours, theirs = statistics.median(taken[what]), statistics.median(taken[BEFORE])
    results = [Result(what, ours, "s", "before, in turns", theirs, theirs / ours)]
    once = [kind for kind in taken if kind not in (what, BEFORE)]
    results += [Result(kind, taken[kind][0], "s") for kind in once]
    whole = ours + sum(taken[kind][0] - (ours if kind != INDEX else 0) for kind in once)
    results.append(Result(f"{what}, all that is made once included", whole, "s", BEFORE, theirs, theirs / whole))
    report(f"nearest_tables {what}", results, ["5x with a bounded index, 1.5x without; the same table"])
    for kind, table in tables.items():
        changed = []
        for one, other in zip(table, tables[BEFORE], strict=True):  # keys that only this tree has are no difference
            figures = [f"{key} {other[key]} -> {one[key]}" for key in other if one[key] != other[key]]
            changed += [f"  {other['method']}, {other['shots']} shots: {', '.join(figures)}"] if figures else []
        print(f"table {kind}: {'DIFFERENT' if changed else 'the same'}", *changed, sep="\n")


@contextmanager
def _folder(scratch: Path | None) -> Iterator[Path]:
    if scratch is None:
        with tempfile.TemporaryDirectory(prefix="nearest-tables-") as name:
            yield Path(name)
    else:
        scratch.mkdir(parents=True, exist_ok=True)
        yield scratch


def _prepare(folder: Path, before: Path, options: argparse.Namespace) -> None:
    first = folder / "before.zarr"
    _make(first, options.rows, options.dim, options.queries)
    steps = ["--steps", "30", "--out", str(folder / "runs" / "triplet")]
    _run(before, "ppa", "baseline", "triplet", "--store", str(first), *steps)
    shutil.copytree(first, folder / "after.zarr")


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
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=(WITHOUT, WITH), nargs="+", default=(WITHOUT, WITH))
    parser.add_argument("--prepare", action="store_true", help="make the stores in --scratch, and measure nothing")
    parser.add_argument("--eval", default="", help="more options of `ppa eval`, such as '--draws 5'")
    parser.add_argument("--scratch", type=Path, help="where the stores are made and left: 10 GB at the default size")
    return parser.parse_args()


if __name__ == "__main__":
    main()

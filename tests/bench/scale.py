"""Cost and memory of every stage against the number of rows, with the slope of log cost over log rows.

`python -m tests.bench.scale --sizes 1e4,1e5,1e6,1e7 --dim 2048`: a size that the disk has no room for is left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from actstore.compute.process import Result
from actstore.compute.tensors import convert_into
from actstore.tables.row_source import SyntheticSpec
from tests.bench.common import OUT, machine
from tests.bench.scale_stages import STAGES, Figures
from tests.bench.watch import watch

SPARE = 15e9  # bytes of disk that are left to others
BASE_ROWS = 1 << 15
MOST_CLASSES = 21_000  # ImageNet-21k
BOUNDED_ROWS = 100_000  # tests.bench.memory builds the index of 1.2 million rows
Measured = dict[int, Figures]


def classes_of(rows: int) -> int:
    """100 rows of each until there are as many classes as ImageNet-21k has."""
    return min(MOST_CLASSES, max(2, rows // 100))


def measure(rows: int, dim: int, folder: Path, skipped: Sequence[str]) -> Figures:
    """Every stage on a store of so many rows, which is deleted afterwards."""
    store, found = folder / f"{rows}.zarr", {}
    try:
        for stage in STAGES:
            if stage in skipped or (stage == "bounded search" and rows > BOUNDED_ROWS):
                continue
            arguments = (str(rows), str(dim), str(classes_of(rows)))
            usage = watch(sys.executable, "-m", "tests.bench.scale_stages", stage, store, *arguments)
            found |= {name: (value, unit) for name, (value, unit) in json.loads(usage.printed).items()}
            found[f"{stage}: memory of its own"] = (usage.own / 1e6, "MB")
            found[f"{stage}: memory with mapped pages"] = (usage.resident / 1e6, "MB")
            print(f"{rows:>12,} {stage:16s} {usage.seconds:9.1f} s", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(store.with_suffix(".zarr.search"), ignore_errors=True)
    return found


def slope(costs: Mapping[int, float]) -> float:
    """Of log cost over log rows: 1 is proportional, 0 is flat."""
    if len(costs) < 2 or min(costs.values()) <= 0:
        return float("nan")
    rows, values = zip(*costs.items(), strict=True)
    return float(np.polyfit(np.log(rows), np.log(values), 1)[0])


def costs_of(measured: Measured) -> dict[str, tuple[str, dict[int, float]]]:
    """Name -> (unit, {rows: cost}), in the order of the stages."""
    costs: dict[str, tuple[str, dict[int, float]]] = {}
    for rows, figures in measured.items():
        for name, (value, unit) in figures.items():
            costs.setdefault(name, (unit, {}))[1][rows] = value
    return costs


def print_table(measured: Measured) -> None:
    print("| | " + " | ".join(f"{rows:,}" for rows in measured) + " | slope | of the last two |")
    print("|---|" + "---|" * (len(measured) + 2))
    for name, (unit, costs) in costs_of(measured).items():
        cells = [f"{costs[rows]:,.4g}" if rows in costs else "" for rows in measured]
        last = dict(list(costs.items())[-2:])
        print(f"| {name}, {unit} | {' | '.join(cells)} | {slope(costs):.2f} | {slope(last):.2f} |", flush=True)


def write_base(folder: Path, dim: int) -> Path:
    """Some rows that resemble real ones; the stages make many of them."""
    path = folder / f"base-{dim}.npy"
    half = np.empty((BASE_ROWS, dim), np.float16)
    first = 0
    for block in SyntheticSpec(BASE_ROWS, dim, 1000, shuffled=True).table().activations.blocks(0, BASE_ROWS):
        convert_into(half[first : first + len(block)], block)
        first += len(block)
    np.save(path, half)
    return path


def write_results(measured: Measured, dim: int) -> None:
    """bench-out/scale.json, or scale-DIM.json."""
    results = [
        Result(f"{name}, {rows:,} rows", value, unit)
        for rows, figures in measured.items()
        for name, (value, unit) in figures.items()
    ]
    results += [Result(f"{name}, slope", slope(costs), "") for name, (_, costs) in costs_of(measured).items()]
    name = "scale" if dim == 2048 else f"scale-{dim}"
    (OUT / f"{name}.json").write_text(json.dumps([result.to_json() for result in results], indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1e4,1e5,1e6,1e7")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--skip", default="", help="Stages to leave out, with commas.")
    options = parser.parse_args()
    folder = OUT / "scale"
    folder.mkdir(parents=True, exist_ok=True)
    measured: Measured = {}
    try:
        write_base(folder, options.dim)
        for rows in sorted(int(float(size)) for size in options.sizes.split(",")):
            needed, free = rows * options.dim * 2 * 1.02 + SPARE, shutil.disk_usage(folder).free
            if free < needed:
                print(f"{rows:,} rows left out: needs {needed / 1e9:.0f} GB of free disk, there are {free / 1e9:.0f}")
                continue
            measured[rows] = measure(rows, options.dim, folder, options.skip.split(","))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    counts = ", ".join(f"{classes_of(rows):,}" for rows in measured)
    print(f"\n## scale, dim {options.dim}, {counts} classes   [{machine()}]")
    print_table(measured)
    write_results(measured, options.dim)


if __name__ == "__main__":
    main()

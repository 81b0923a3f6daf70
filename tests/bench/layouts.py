"""`python -m tests.bench.layouts`: take, scan and write of ways to keep (rows, dim) fp16 values, on one disk.

Ours in three layouts, a numpy memmap, and other stores where installed. `--zarr-python PYTHON`: also zarr of another
environment, with its fused pipeline (zarr 3.4 wants Python 3.12).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from numpy.typing import NDArray

import actstore
from actstore.compute.process import Result, seconds
from actstore.compute.tensors import borrow
from actstore.tables.importing import from_arrays
from actstore.tables.row_source import SyntheticSpec
from tests.bench.common import alternate, report

Values = NDArray[Any]
Rows = NDArray[np.int64]
SCAN_ROWS = 8192  # of a block
_QUICK = 0.02  # seconds
PEER = "numpy memmap"
SHARDED = {"chunk_rows": 8192, "shard_inner_rows": 64}
Say = Callable[[str], None]


def bench_layouts(
    folder: Path, rows: int, dim: int, batch: int = 900, rounds: int = 9, zarr_python: str | None = None,
    say: Say = print,
) -> list[Result]:  # fmt: skip
    """Rows/s for `take` of `batch` random rows, GB/s for a scan and for a durable write; all warm."""
    values = _values(rows, dim)
    ways = contenders(zarr_python)
    place = Path(tempfile.mkdtemp(prefix="actstore-bench-", dir=folder))
    try:
        written = {}
        for way in ways:
            say(f"write {way.name}")
            (place / way.name).mkdir()
            written[way.name] = seconds(partial(_write_durably, way, place / way.name, values))
        say(f"take {batch} random rows, in turns")
        taken = _bench_take(ways, place, rows, batch, rounds)
        say("scan all rows, in turns")
        scanned = alternate({way.name: _scan(way, place) for way in ways}, rounds=3)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    gigabytes = values.nbytes / 1e9
    return [
        *_results("take", {name: batch / time for name, time in taken.items()}, "rows/s"),
        *_results("scan", {name: gigabytes / time for name, time in scanned.items()}, "GB/s"),
        *_results("write", {name: gigabytes / time for name, time in written.items()}, "GB/s"),
    ]


def _values(rows: int, dim: int) -> Values:
    source = SyntheticSpec(rows, dim, classes=min(rows, 1000)).table().activations
    values = np.empty((rows, dim), np.float16)
    position = 0
    for block in source.blocks(0, rows):
        torch.from_numpy(values[position : position + len(block)]).copy_(torch.from_numpy(block))
        position += len(block)
    return values


def _write_durably(way: Contender, folder: Path, values: Values) -> None:
    """Not every store flushes to disk by itself; here all have to."""
    way.write(folder, values)
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())


def _bench_take(ways: list[Contender], place: Path, rows: int, batch: int, rounds: int) -> dict[str, float]:
    random = np.random.default_rng(0)

    def taker(way: Contender) -> Callable[[], Any]:
        opened = way.open(place / way.name)
        return lambda: way.take(opened, random.integers(0, rows, batch))

    takers = {way.name: taker(way) for way in ways}
    first = {name: min(seconds(take) for _ in range(3)) for name, take in takers.items()}
    quick = {name: take for name, take in takers.items() if first[name] < _QUICK}  # more rounds tell these apart
    slow = {name: take for name, take in takers.items() if name not in quick}
    return alternate(quick, 40 * rounds, settle=True) | alternate(slow, rounds, settle=True)


def _scan(way: Contender, place: Path) -> Callable[[], float]:
    """Touch every value once, so that lazy readers have to read."""
    opened = way.open(place / way.name)
    return lambda: sum(float(borrow(block).view(torch.int16).amax()) for block in way.scan(opened))


def _results(what: str, values: dict[str, float], unit: str) -> list[Result]:
    peer = values[PEER]
    return [Result(f"{what} {name}", value, unit, PEER, peer, value / peer) for name, value in values.items()]


def _index(array: Any, rows: Rows) -> Values:
    return np.asarray(array[rows])


def _slices(array: Any) -> Iterator[Values]:
    count = array.shape[0]  # tensorstore refuses a slice past the end
    return (np.asarray(array[first : min(first + SCAN_ROWS, count)]) for first in range(0, count, SCAN_ROWS))


@dataclass(frozen=True)
class Contender:
    """write stores the values under a folder, open reads them back; take and scan read what open gave."""

    name: str
    write: Callable[[Path, Values], object]
    open: Callable[[Path], Any]
    take: Callable[[Any, Rows], Values] = _index
    scan: Callable[[Any], Iterator[Values]] = _slices


def contenders(zarr_python: str | None = None) -> list[Contender]:
    """Ours in three layouts, the memmap, and every other store that is installed."""
    ours = [_ours("actstore"), _ours("actstore blosc", codec="blosc"), _ours("actstore sharded", **SHARDED)]
    memmap = Contender(
        "numpy memmap",
        lambda folder, values: np.save(folder / "values.npy", values),
        lambda folder: np.load(folder / "values.npy", mmap_mode="r"),
    )
    others = {"lance": [_lance()], "h5py": [_h5py()]}
    for name, layout in (("", {}), (" on our shards", SHARDED)):
        others.setdefault("zarr", []).append(_zarr(f"zarr {zarr.__version__}{name}", layout))
        others.setdefault("tensorstore", []).append(_tensorstore(f"tensorstore{name}", layout))
        if zarr_python is not None:
            others["zarr"].append(_other_zarr(f"zarr elsewhere, fused{name}", layout, zarr_python))
    return [*ours, memmap, *(each for module, ways in others.items() if find_spec(module) for each in ways)]


def _ours(name: str, **layout: Any) -> Contender:
    return Contender(
        name,
        lambda folder, values: from_arrays(folder / "store.zarr", {"train": (values, None)}, **layout),
        lambda folder: actstore.open(folder / "store.zarr")["train"],
        lambda split, rows: split.take(rows),
        lambda split: split.blocks(),
    )


def _array(folder: Path) -> Path:
    """Of our store, whose very files zarr and tensorstore read."""
    return folder / "store.zarr" / "train" / "activations"


def _zarr(name: str, layout: dict[str, Any]) -> Contender:
    def open_store(folder: Path) -> Any:
        return zarr.open_array(_array(folder), mode="r")

    return Contender(name, _ours("", **layout).write, open_store, lambda array, rows: np.asarray(array.oindex[rows]))


ELSEWHERE = """
import sys, json, zarr
zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline"})
array = zarr.open_array(sys.argv[1], mode="r")
print(zarr.__version__, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    array[slice(*asked["slice"])] if "slice" in asked else array.oindex[asked["rows"]]
    print("done", flush=True)
"""


def _other_zarr(name: str, layout: dict[str, Any], python: str) -> Contender:
    """zarr of another environment, in a process of its own: rows are named and read there, and not sent back."""

    def open_store(folder: Path) -> Any:
        command = [python, "-c", ELSEWHERE, str(_array(folder))]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        print(f"{name}: zarr {child.stdout.readline().strip()}")
        return child

    def ask(child: Any, **asked: Any) -> Values:
        child.stdin.write(json.dumps(asked) + "\n")
        if child.stdout.readline() != "done\n":
            raise RuntimeError(f"{name} ended")
        return np.zeros((1, 1), np.float16)

    return Contender(
        name, _ours("", **layout).write, open_store,
        lambda child, rows: ask(child, rows=rows.tolist()),
        lambda child: iter([ask(child, slice=[None])]),
    )  # fmt: skip


def _tensorstore(name: str, layout: dict[str, Any]) -> Contender:
    def open_store(folder: Path) -> Any:
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(_array(folder))}}
        return tensorstore.open(spec, read=True).result()

    return Contender(name, _ours("", **layout).write, open_store)


def _lance() -> Contender:
    def write(folder: Path, values: Values) -> None:
        import lance
        import pyarrow

        rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.reshape(-1)), values.shape[1])
        lance.write_dataset(pyarrow.table({"activations": rows}), str(folder / "values.lance"))

    def open_dataset(folder: Path) -> Any:
        import lance

        return lance.dataset(str(folder / "values.lance"))

    def as_values(column: Any) -> Values:
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(-1, column.type.list_size)

    return Contender(
        "Lance",
        write,
        open_dataset,
        lambda dataset, rows: as_values(dataset.take(rows.tolist()).column(0).combine_chunks()),
        lambda dataset: (as_values(batch.column(0)) for batch in dataset.to_batches(batch_size=SCAN_ROWS)),
    )


def _h5py() -> Contender:
    def write(folder: Path, values: Values) -> None:
        import h5py

        with h5py.File(folder / "values.h5", "w") as file:
            file.create_dataset("activations", data=values, chunks=(64, values.shape[1]))

    def open_dataset(folder: Path) -> Any:
        import h5py

        return h5py.File(folder / "values.h5", "r")["activations"]

    def take(dataset: Any, rows: Rows) -> Values:  # h5py wants ascending, distinct rows
        wanted, back = np.unique(rows, return_inverse=True)
        return np.asarray(dataset[wanted])[back]

    return Contender("h5py", write, open_dataset, take)


def draw_contenders(results: Iterable[Result], title: str) -> Any:
    """A panel for each measurement. Results are named '<measurement> <contender>'; the best is first, ours are blue."""
    from predictor.figures.style import BLUE, GREY, Bar, draw_bars

    panels: dict[tuple[str, str], list[Bar]] = {}
    for result in sorted(results, key=lambda result: result.value, reverse=True):
        measurement, name = result.name.split(" ", 1)
        note = f"{result.value:,.0f}" if result.value >= 1000 else f"{result.value:.3g}"
        bar = Bar(name, result.value, note, BLUE if name.startswith("actstore") else GREY)
        panels.setdefault((f"{measurement}, higher is better", result.unit), []).append(bar)
    return draw_bars(panels, title)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path(), help="the disk to measure")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--zarr-python", metavar="PYTHON", help="a Python that has zarr 3.4 or later")
    parser.add_argument("--chart", type=Path, help="also draw bars, .png or .svg")
    asked = parser.parse_args()
    results = bench_layouts(asked.dir, asked.rows, asked.dim, zarr_python=asked.zarr_python)
    report("layouts", results)
    if asked.chart is not None:
        from predictor.figures.style import save

        title = f"{asked.rows:,} x {asked.dim} fp16, {os.cpu_count()} cores, page cache warm"
        save(draw_contenders(results, title), asked.chart)


if __name__ == "__main__":
    main()

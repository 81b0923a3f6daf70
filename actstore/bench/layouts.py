"""`actstore bench`: take, scan and write of every contender on one disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.bench.contenders import Contender, contenders
from actstore.bench.measure import Result, alternate, seconds
from actstore.compute.tensors import borrow
from actstore.tables.synthetic import SyntheticSpec

PEER = "numpy memmap"
Say = Callable[[str], None]


def bench_layouts(
    folder: Path, rows: int, dim: int, batch: int = 900, rounds: int = 9, peers: bool = True, say: Say = print
) -> list[Result]:
    """Rows/s for `take` of `batch` random rows, GB/s for a scan and for a durable write; all warm."""
    values = _values(rows, dim)
    ways = contenders(peers)
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


def _values(rows: int, dim: int) -> NDArray[Any]:
    source = SyntheticSpec(rows, dim, classes=min(rows, 1000)).table().activations
    values = np.empty((rows, dim), np.float16)
    position = 0
    for block in source.blocks(0, rows):
        torch.from_numpy(values[position : position + len(block)]).copy_(torch.from_numpy(block))
        position += len(block)
    return values


def _write_durably(way: Contender, folder: Path, values: NDArray[Any]) -> None:
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

    return alternate({way.name: taker(way) for way in ways}, rounds, settle=True)


def _scan(way: Contender, place: Path) -> Callable[[], float]:
    """Touch every value once, so that lazy readers have to read."""
    opened = way.open(place / way.name)
    return lambda: sum(float(borrow(block).view(torch.int16).amax()) for block in way.scan(opened))


def _results(what: str, values: dict[str, float], unit: str) -> list[Result]:
    peer = values[PEER]
    return [Result(f"{what} {name}", value, unit, PEER, peer, value / peer) for name, value in values.items()]

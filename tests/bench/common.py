"""What the benchmarks share: data, child processes with their memory, a table and a JSON file."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from actstore.compute.process import Result, seconds
from actstore.compute.tensors import convert_into
from actstore.tables.row_source import SyntheticSpec

ROOT = Path(__file__).parents[2]
OUT = Path(os.environ.get("ACTSTORE_BENCH", ROOT / "bench-out"))


def alternate(
    actions: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1, settle: bool = False
) -> dict[str, float]:
    """Median seconds of each action, run one after the other in every round.

    settle: run each once more just before it is timed, so that none pays for what another left in the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(warm_up + rounds):
        for name, action in actions.items():
            if settle:
                action()
            taken = seconds(action)
            if turn >= warm_up:
                times[name].append(taken)
    return {name: statistics.median(taken) for name, taken in times.items()}


def machine() -> str:
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{os.cpu_count()} cores ({platform.machine()}), {gpu}, Python {platform.python_version()}"


def features(rows: int, dim: int = 2048, classes: int = 1000, shuffled: bool = False) -> tuple[Path, Path]:
    """Generated rows as an fp16 .npy file, and their labels; made once."""
    spec = SyntheticSpec(rows, dim, classes, shuffled=shuffled)
    stem = OUT / "data" / f"features-{rows}x{dim}{'-shuffled' if shuffled else ''}"
    values, labels = stem.with_suffix(".npy"), stem.with_suffix(".labels.npy")
    if not labels.exists():
        print(f"generating {rows:,} x {dim} rows", file=sys.stderr, flush=True)
        values.parent.mkdir(parents=True, exist_ok=True)
        table = spec.table()
        with values.open("wb") as file:
            header = {"descr": "<f2", "fortran_order": False, "shape": (rows, dim)}
            np.lib.format.write_array_header_1_0(file, header)
            for block in table.activations.blocks(0, rows):
                half = np.empty(block.shape, np.float16)
                convert_into(half, block)
                file.write(half.data)
        np.save(labels, table.labels)
    return values, labels


def run(*command: str | Path) -> tuple[float, str]:
    """Run a child process; returns its seconds and what it printed."""
    begin = time.perf_counter()
    child = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=True)
    return time.perf_counter() - begin, child.stdout


def actstore(*arguments: str | Path) -> tuple[float, int, str]:
    """Run an `actstore` command; returns its seconds, its peak resident bytes and what it printed."""
    code = (
        "from cli.actstore import main; from actstore.compute.process import peak_memory; "
        "main(standalone_mode=False); print(peak_memory())"
    )
    seconds, printed = run(sys.executable, "-c", code, *arguments)
    *lines, peak = printed.splitlines()
    return seconds, int(peak), "\n".join(lines)


def digest(store: Path) -> dict[str, str]:
    """The sha256 of each of its files."""
    files = (file for file in store.rglob("*") if file.is_file())
    return {str(file.relative_to(store)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def report(name: str, results: Sequence[Result], bars: Sequence[str] = ()) -> None:
    """Print a table, and keep the figures in bench-out/NAME.json."""
    print(f"\n## {name}   [{machine()}]")
    for result in results:
        peer = "" if result.peer is None else f"   {result.ratio:6.2f}x  {result.peer} ({result.peer_value:,.4g})"
        print(f"{result.name:52s} {result.value:>12,.4g} {result.unit:8s}{peer}")
    for bar in bars:
        print(f"  bar: {bar}")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps([result.to_json() for result in results], indent=2) + "\n")
    sys.stdout.flush()


def rate(name: str, ours: float, peer: str, theirs: float, amount: float, unit: str) -> Result:
    """A rate and its peer's from seconds; ratio > 1: ours is faster."""
    return Result(name, amount / ours, unit, peer, amount / theirs, theirs / ours)

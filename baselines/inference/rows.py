"""The rows that an inference benchmark searches, queries that are not among them, and the memory that there is for
both, so that what cannot fit is left out and the process is not killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from actstore.compute.measure import peak_memory
from actstore.compute.tensors import borrow
from actstore.errors import InvalidInputError
from actstore.progress import bar, note
from actstore.split import Split
from actstore.store import ActivationStore
from actstore.streams.sampling import generator
from actstore.tables.synthetic import SyntheticSpec

RESERVE = 1 << 30  # bytes that are left to everything else: libraries, samples that an index is fitted on
_EVERY = 0.2  # seconds between two looks
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that can be had without swapping, by this machine and by the limit of a container."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    free = _kilobytes(info, "MemAvailable") * 1024
    with suppress(OSError, ValueError):  # no such limit
        most, used = (int((_CONTROL_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, most - used)
    return free


@dataclass
class Peak:
    """total: resident at most, files that were mapped included. own: what no file stands behind, at most."""

    total: int = 0
    own: int = 0


@contextmanager
def watch_memory() -> Iterator[Peak]:
    """The peak of this process while the block runs; both are filled in when it ends."""
    peak, stopped = Peak(), threading.Event()

    def look() -> None:
        while True:
            peak.own = max(peak.own, own_memory())
            if stopped.wait(_EVERY):
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        stopped.set()
        watcher.join()
        peak.total = peak_memory()


def own_memory() -> int:
    """Bytes of this process that no file stands behind: what only its end gives back."""
    status = Path("/proc/self/status")
    return _kilobytes(status, "RssAnon") * 1024 if status.exists() else peak_memory()


def _kilobytes(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])


PAPER_SIZE = (1_200_000, 2048)
QUERIES = 64


@dataclass(frozen=True)
class BenchRows:
    """rows: a split, or a (n, dim) float16 tensor. queries: (QUERIES, dim) float32. what: both in words."""

    rows: Split | Tensor
    queries: Tensor
    what: str

    @property
    def shape(self) -> tuple[int, int]:
        count, dim = self.rows.shape
        return count, dim


def stored_rows(store: ActivationStore, split: str) -> BenchRows:
    """Queries from val or test where the store has one; else from the rows themselves."""
    rows = store[split]
    held = next((name for name in ("val", "test") if name in store.splits and name != rows.name), rows.name)
    chosen = generator(0, 0).choice(len(store[held]), min(QUERIES, len(store[held])), replace=False)
    queries = borrow(store[held].take(chosen)).float()
    if len(queries) < QUERIES:
        queries = torch.cat([queries] * -(-QUERIES // len(queries)))[:QUERIES]
    return BenchRows(rows, queries, f"{len(rows):,} x {rows.dim} rows of {rows.path}, queries from {held}")


def fitting_size(free: int) -> tuple[int, int]:
    """As many rows as the paper has, or as fit with their fp32 copy and some room."""
    count, dim = PAPER_SIZE
    return max(1, min(count, (free - 2 * RESERVE) // needed_bytes(1, dim))), dim


def needed_bytes(count: int, dim: int) -> int:
    """Of rows in fp16 with their copy in fp32: the most that is held at one time."""
    return count * dim * (2 + 4)


def generated_rows(count: int, dim: int, progress: bool | None = None) -> BenchRows:
    """fp16 rows in memory, and queries drawn with them but not among them."""
    free, wanted = available_memory(), 2 * (count + QUERIES) * dim
    if wanted + RESERVE > free:
        raise InvalidInputError(
            f"{count:,} x {dim} rows take {wanted / 1e9:.1f} GB in fp16, and {free / 1e9:.1f} GB are free; "
            "ask for fewer rows"
        )
    note(f"generating {count:,} x {dim} rows in memory, {wanted / 1e9:.1f} GB", progress)
    rows = torch.empty(count + QUERIES, dim, dtype=torch.float16)
    source, done = SyntheticSpec(count + QUERIES, dim, shuffled=True).table().activations, 0
    with bar("generate", count + QUERIES, "rows", progress) as done_rows:
        for block in source.blocks(0, count + QUERIES):
            rows[done : done + len(block)] = torch.from_numpy(block)
            done += len(block)
            done_rows.update(len(block))
    return BenchRows(rows[:count], rows[count:].float(), f"{count:,} x {dim} generated rows")

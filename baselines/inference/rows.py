"""The rows that an inference benchmark searches, and queries that are not among them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actstore.compute.tensors import borrow
from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.store import ActivationStore
from actstore.streams.sampling import generator
from actstore.tables.synthetic import SyntheticSpec
from baselines.inference.memory import RESERVE, available_memory

PAPER_SIZE = (1_200_000, 2048)
QUERIES = 64
Say = Callable[[str], None]
Progress = Callable[[str, int], AbstractContextManager[Any]]  # what, how many rows -> has update(count)


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


def generated_rows(count: int, dim: int, say: Say, progress: Progress) -> BenchRows:
    """fp16 rows in memory, and queries drawn with them but not among them."""
    free, wanted = available_memory(), 2 * (count + QUERIES) * dim
    if wanted + RESERVE > free:
        raise InvalidInputError(
            f"{count:,} x {dim} rows take {wanted / 1e9:.1f} GB in fp16, and {free / 1e9:.1f} GB are free; "
            "ask for fewer rows"
        )
    say(f"generating {count:,} x {dim} rows in memory, {wanted / 1e9:.1f} GB")
    rows = torch.empty(count + QUERIES, dim, dtype=torch.float16)
    source, done = SyntheticSpec(count + QUERIES, dim, shuffled=True).table().activations, 0
    with progress("generate", count + QUERIES) as bar:
        for block in source.blocks(0, count + QUERIES):
            rows[done : done + len(block)] = torch.from_numpy(block)
            done += len(block)
            bar.update(len(block))
    return BenchRows(rows[:count], rows[count:].float(), f"{count:,} x {dim} generated rows")

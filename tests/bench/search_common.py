"""What the benchmarks of searches share: peers, rows, queries, and turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import actstore as library
from actstore.compute.process import Result
from actstore.search import BoundedSearch
from actstore.search.index_files import find
from actstore.search.table import unit
from actstore.tables.row_source import TILE, SyntheticSpec
from tests.bench.common import OUT, actstore

BATCH, K, DIM = 32, 5, 2048
BARE_BLOCK = 512  # rows of 2048 dimensions: the fastest for the bare loop on one core
Action = Callable[[], float | None]


def bare(rows: Tensor, queries: Tensor, k: int, block: int = BARE_BLOCK) -> Callable[[], Tensor]:
    """What one would write: convert a block of the tensor held in memory, multiply, keep the k best. By inner product
    with unit queries: the norms of the rows, which a cosine needs, are left out in favour of the peer."""
    directions, buffer = unit(queries), torch.empty(block, rows.shape[1])

    def search() -> Tensor:
        scores, places = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
        for start in range(0, len(rows), block):
            piece = rows[start : start + block]
            if piece.dtype != torch.float32:
                piece = buffer[: len(piece)].copy_(piece)
            best = (directions @ piece.T).topk(min(k, len(piece)), dim=1)
            scores = torch.cat([scores, best.values], 1)
            places = torch.cat([places, best.indices + start], 1)
        return places.gather(1, scores.topk(k, dim=1).indices)

    return search


def same(one: tuple[Any, Any], other: tuple[Any, Any]) -> str:
    return "identical" if all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)) else "DIFFERENT"


def held_out(rows: int, count: int = BATCH) -> NDArray[np.float32]:
    """(count, DIM) generated rows of the same classes that are in no store: from tiles beyond the last."""
    spec = SyntheticSpec((rows // TILE + 3) * TILE, DIM, shuffled=True)
    start = (rows // TILE + 1) * TILE
    block = next(iter(spec.table().activations.blocks(start, start + TILE)))
    return block[:count].astype(np.float16).astype(np.float32)


def synthetic_store(rows: int) -> library.ActivationStore:
    path = OUT / "data" / f"search-{rows}.zarr"
    if not path.exists():
        actstore("synth", path, "--rows", str(rows), "--shuffled")
    return library.open(path)


def bounded_of(split: library.Split) -> BoundedSearch:
    if find(split, "bounded") is None:
        seconds, peak, _ = actstore("index", split.store_path, "--kind", "bounded")
        print(f"bounded index: {seconds:.0f} s, peak {peak / 1e9:.2f} GB (mapped files included)", flush=True)
    return BoundedSearch(split)


def per_query(name: str, taken: dict[str, float], ours: str, peer: str, batch: int) -> Result:
    mine, theirs = taken[ours] * 1e3 / batch, taken[peer] * 1e3 / batch
    return Result(name, mine, "ms/query", peer, theirs, theirs / mine)


def in_turns(actions: dict[str, Action], rounds: int) -> dict[str, float]:
    """Median seconds of each; an action of another process returns the seconds that it took there."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(rounds + 1):
        for name, action in actions.items():
            begin = time.perf_counter()
            inside = action()
            seconds = time.perf_counter() - begin if inside is None else inside
            if turn:
                taken[name].append(seconds)
    return {name: statistics.median(times) for name, times in taken.items()}


def quiet(search: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
    def run() -> None:
        search(*arguments)

    return run

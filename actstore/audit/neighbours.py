"""The nearest rows of every row among all splits that can be compared: exact, block by block, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.compute.tensors import borrow
from actstore.errors import DamagedError, InvalidInputError
from actstore.search import BoundedSearch, Engine, open_engine
from actstore.split import Split
from actstore.storage.tensor_file import read_tensors, write_tensors

BLOCK_ROWS = 4096  # queries between two writes: at most some seconds are lost by a kill
SPARE = 2  # more neighbours than asked for: the row itself and a copy of it are taken out again
_LEAST_INDEXED, _MOST_INDEXED = 20_000, 1 << 30  # rows; bytes of them
_KIND = "audit block"
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Neighbours:
    """scores (n, k) descending, places (n, k): rows of the splits one after the other; -1 where there is none."""

    scores: NDArray[np.float32]
    places: NDArray[np.int64]

    def pick(self, good: NDArray[np.bool_], k: int) -> Neighbours:
        """The first k of those that are good, in the same order; what is missing comes last."""
        order = np.argsort(~good, axis=1, kind="stable")[:, :k]
        kept = np.take_along_axis(good, order, 1)
        scores = np.where(kept, np.take_along_axis(self.scores, order, 1), np.float32(-1))
        return Neighbours(scores, np.where(kept, np.take_along_axis(self.places, order, 1), -1))


def find_neighbours(
    splits: Sequence[Split],
    is_zero: NDArray[np.bool_],
    k: int,
    folder: Path,
    key: str,
    progress: Progress | None = None,
) -> Neighbours:
    """Of all rows of the splits, one after the other, without themselves and without rows of zeros.

    folder: where finished blocks are kept until all are there; blocks of another key, or damaged ones, are made
    again. An interrupted search goes on after its last block.
    """
    starts = np.cumsum([0, *(len(split) for split in splits)])
    engines = [_engine(split) for split in splits]
    parts = []
    for number, split in enumerate(splits):
        for first in range(0, len(split), BLOCK_ROWS):
            last = min(len(split), first + BLOCK_ROWS)
            file = folder / f"{split.name}-{first}.safetensors"
            found = _read(file, key)
            if found is None:
                queries = np.arange(first, last)
                queries = queries[~is_zero[starts[number] + queries]]
                found = _search(engines, splits, split.take(queries), queries + starts[number], is_zero, k)
                found = _spread(found, queries - first, last - first)
                _write(file, key, found)
            parts.append(found)
            if progress is not None:
                progress(last - first)
    empty = Neighbours(np.empty((0, k), np.float32), np.empty((0, k), np.int64))
    joined = [empty, *parts]
    return Neighbours(np.concatenate([one.scores for one in joined]), np.concatenate([one.places for one in joined]))


def _engine(split: Split) -> Engine:
    """Any gives the same answers. So many searches pay for a bounded index in memory, where none is kept."""
    kept = open_engine(split)
    is_middling = len(split) >= _LEAST_INDEXED and len(split) * split.spec.row_bytes <= _MOST_INDEXED
    if isinstance(kept, BoundedSearch) or not is_middling:
        return kept
    return BoundedSearch(borrow(split.rows.read(0, len(split))))


def _search(
    engines: Sequence[Engine],
    splits: Sequence[Split],
    vectors: NDArray[np.floating],
    own: NDArray[np.int64],
    is_zero: NDArray[np.bool_],
    k: int,
) -> Neighbours:
    """own (n,): the places of the queries, which are no neighbours of themselves."""
    scores, places, start = [np.empty((len(own), 0), np.float32)], [np.empty((len(own), 0), np.int64)], 0
    for engine, split in zip(engines, splits, strict=True):
        if len(own) and len(split):
            near, rows = engine.search(vectors, min(k + 1, len(split)))
            scores.append(near)
            places.append(rows + start)
        start += len(split)
    found = Neighbours(np.concatenate(scores, axis=1), np.concatenate(places, axis=1))
    order = np.lexsort((found.places, -found.scores), axis=1)
    found = Neighbours(np.take_along_axis(found.scores, order, 1), np.take_along_axis(found.places, order, 1))
    found = found.pick((found.places != own[:, None]) & ~is_zero[found.places], k)
    lacking = k - found.places.shape[1]
    return Neighbours(
        np.pad(found.scores, ((0, 0), (0, lacking)), constant_values=-1),
        np.pad(found.places, ((0, 0), (0, lacking)), constant_values=-1),
    )


def _spread(found: Neighbours, at: NDArray[np.int64], count: int) -> Neighbours:
    """Rows of zeros, which were not searched for, have no neighbours."""
    k = found.places.shape[1]
    scores, places = np.full((count, k), -1, np.float32), np.full((count, k), -1, np.int64)
    scores[at], places[at] = found.scores, found.places
    return Neighbours(scores, places)


def _write(file: Path, key: str, found: Neighbours) -> None:
    tensors = {"scores": torch.from_numpy(found.scores), "places": torch.from_numpy(found.places)}
    write_tensors(file, _KIND, tensors, {"key": key})


def _read(file: Path, key: str) -> Neighbours | None:
    try:
        tensors, about = read_tensors(file, _KIND)
    except (DamagedError, InvalidInputError):
        return None
    return Neighbours(tensors["scores"].numpy(), tensors["places"].numpy()) if about.get("key") == key else None


def pieces(count: int) -> Iterator[slice]:
    """Of all rows, as many as a block holds at a time."""
    return (slice(first, min(count, first + BLOCK_ROWS)) for first in range(0, count, BLOCK_ROWS))

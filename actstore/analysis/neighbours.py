"""The nearest rows of every row among all splits that can be compared: exact, block by block, resumable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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

Progress = Callable[[int], None]  # rows done since the last call


@dataclass(frozen=True)
class Neighbours:
    """scores (n, k) descending, places (n, k): rows of the splits one after the other; -1 where there is none."""

    scores: NDArray[np.float32]
    places: NDArray[np.int64]

    @property
    def distances(self) -> NDArray[np.float64]:
        """(n, k) between rows of length one; that of a missing neighbour is 2, the largest there is."""
        return np.sqrt(np.maximum(2 - 2 * self.scores.astype(np.float64), 0))

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
    engines: list[Engine] = []
    parts = [_nothing(0, k)]
    for split, start in zip(splits, starts.tolist(), strict=False):
        for rows in pieces(len(split)):

            def search(split: Split = split, start: int = start, rows: slice = rows) -> Neighbours:
                engines.extend(_engine(each) for each in splits[len(engines) :])  # not before something is to be done
                own = slice(start + rows.start, start + rows.stop)
                return search_block(engines, splits, split[rows], np.arange(own.start, own.stop), is_zero, k)

            parts.append(kept_block(folder / f"{split.name}-{rows.start}.safetensors", key, search))
            if progress is not None:
                progress(rows.stop - rows.start)
    return joined(parts)


def find_across(
    split: Split,
    queries: NDArray[np.floating] | Split,
    is_zero: NDArray[np.bool_],
    k: int,
    folder: Path,
    key: str,
    progress: Progress | None = None,
) -> Neighbours:
    """Of each of the queries (n, dim) the nearest rows of a split; otherwise as `find_neighbours`."""
    engines: list[Engine] = []
    parts = [_nothing(0, k)]
    for rows in pieces(len(queries)):

        def search(rows: slice = rows) -> Neighbours:
            engines.extend([_engine(split)] if not engines else [])
            nobody = np.full(rows.stop - rows.start, -1)
            return search_block(engines, [split], queries[rows], nobody, is_zero, k)

        parts.append(kept_block(folder / f"queries-{rows.start}.safetensors", key, search))
        if progress is not None:
            progress(rows.stop - rows.start)
    return joined(parts)


def joined(parts: Sequence[Neighbours]) -> Neighbours:
    return Neighbours(np.concatenate([part.scores for part in parts]), np.concatenate([part.places for part in parts]))


def remove_blocks(folder: Path) -> None:
    """The blocks of a finished or discarded search; what else lies there is not ours."""
    for file in folder.glob("*"):
        if re.fullmatch(r".+-[0-9]+\.safetensors(\.part)?", file.name):
            file.unlink(missing_ok=True)
    with suppress(OSError):  # it was never made, or holds something else
        folder.rmdir()


def kept_block(file: Path, key: str, search: Callable[[], Neighbours]) -> Neighbours:
    """What the file holds, if it is of this key; else what the search finds, which the file holds from then on."""
    block = _read(file, key)
    if block is None:
        block = search()
        _write(file, key, block)
    return block


def is_block(file: Path) -> bool:
    """Of any search; what is damaged is none."""
    try:
        read_tensors(file, _KIND)
    except (DamagedError, InvalidInputError):
        return False
    return True


def search_block(
    engines: Sequence[Engine], splits: Sequence[Split], queries: NDArray[np.floating], own: NDArray[np.int64],
    is_zero: NDArray[np.bool_], k: int,
) -> Neighbours:  # fmt: skip
    """Of each query (n, dim) k neighbours; those of zeros are not searched for, as they have none."""
    block = _nothing(len(queries), k)
    searched = np.flatnonzero(np.any(queries != 0, axis=1))
    near = _search(engines, splits, queries[searched], own[searched], is_zero, k)
    width = near.places.shape[1]  # fewer than k where there are fewer rows
    block.scores[searched, :width], block.places[searched, :width] = near.scores, near.places
    return block


def _nothing(count: int, k: int) -> Neighbours:
    return Neighbours(np.full((count, k), -1, np.float32), np.full((count, k), -1, np.int64))


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
        zeros = is_zero[start : start + len(split)]
        among = np.flatnonzero(~zeros) if zeros.any() else None  # a row of zeros would rank before negative cosines
        count = len(split) if among is None else len(among)
        if len(own) and count:
            similar, rows = engine.search(vectors, min(k + 1, count), among)
            scores.append(similar)
            places.append(rows + start)
        start += len(split)
    near = Neighbours(np.concatenate(scores, axis=1), np.concatenate(places, axis=1))
    order = np.lexsort((near.places, -near.scores), axis=1)
    near = Neighbours(np.take_along_axis(near.scores, order, 1), np.take_along_axis(near.places, order, 1))
    return near.pick(near.places != own[:, None], k)


def _write(file: Path, key: str, near: Neighbours) -> None:
    tensors = {"scores": torch.from_numpy(near.scores), "places": torch.from_numpy(near.places)}
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

"""The nearest rows of every row, exactly: every pair of rows is looked at once, and counts for both of its rows.

Rows are put into an order in which near ones lie beside each other (join_codes.py). Those that seem nearest in the
cells around a row are scored, which gives every row a threshold that is nearly final before the rest is looked at. Then
all pairs pass through stages of codes: a tile of rows goes on to the next stage only if a pair of it can reach the
threshold of one of its rows. What is left is scored as ranking.py does it, and raises the thresholds of both rows. So
the answers are those of every other search, whatever the order is. By compiled loops alone (loops/join.h).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.tensors import spread, worker_threads
from actstore.search.compiled import Kernels, address, kernels
from actstore.search.join_codes import (
    COSTS,
    PADDED,
    Cells,
    JoinCodes,
    JoinedRows,
    choose_stages,
    find_cells,
    find_directions,
    measure_left,
)
from actstore.search.ranking import LEAST, rounding

BLOCK_ROWS = 2048  # that are compared with all rows after them at a time
_RANGE_ROWS = 1024
_PANEL, _LANES = 16, 32  # rows of a panel, and those that are multiplied at a time: loops.h
_NEAR_CELLS = 24  # where the first neighbours of a row are sought
_NOTHING = np.float32(-2)  # below any score
_LENGTHS = (1e-15, 1e15)  # of rows whose products hold in float32
_BETWEEN_SAVES = 20.0, 20.0  # seconds at least, and times what the last one took


@dataclass
class Joined:
    """What is known so far. order (n,): the numbers of the rows as they are passed over; of each the best so far,
    scores and rows (n, k), -2 and -1 where there is none. done: so many of them, the first ones, are final."""

    order: NDArray[np.int64]
    scores: NDArray[np.float32]
    rows: NDArray[np.int64]
    done: int = 0


class _StageFields(ctypes.Structure):
    """See loops/join.h."""

    _fields_ = [("codes", c_void_p), ("lanes", c_void_p), ("excess", c_void_p), ("rests", c_void_p),
                ("errors", c_void_p), ("width", c_int64), ("unit", c_double)]  # fmt: skip


class _JoinFields(ctypes.Structure):
    """See loops/join.h."""

    _fields_ = [("stages", c_void_p), ("count", c_int64), ("leading", c_void_p), ("norms", c_void_p),
                ("values", c_void_p), ("is_half", c_int64), ("dim", c_int64), ("lengths", c_void_p),
                ("numbers", c_void_p), ("k", c_int64), ("best", c_void_p), ("neighbours", c_void_p),
                ("reaches", c_void_p), ("locks", c_void_p), ("slack", c_double), ("margin", c_double),
                ("first", c_int64), ("lanes", c_int64)]  # fmt: skip


def join_rows(
    values: Sequence[Tensor],
    numbers: NDArray[np.int64],
    k: int,
    known: Joined | None = None,
    save: Callable[[Joined], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Joined | None:
    """The k nearest of the rows with these numbers, by cosine and then by number, none of which is its own neighbour.

    values: (rows, dim) float16 or float32, rows numbered through all of them. numbers (n,): ascending, without rows of
    zeros. known: of an interrupted call for the same rows and k, as `save` got it. progress: is told of rows,
    and takes them back where this does not pay.
    None where a search by all products is no slower, where there are no compiled loops, and for rows of several types
    or of lengths that float32 does not hold the products of.
    """
    loops, dtypes = kernels(), {part.dtype for part in values}
    if loops is None or len(dtypes) > 1 or len(numbers) < max(4 * k, _LANES):
        return None
    with worker_threads() as workers:
        join = _SelfJoin(loops, JoinedRows(values, numbers), k, workers)
        if not join.prepare():
            return None
        if known is None:
            join.begin()
        else:
            join.resume(known)
        return join.run(save or (lambda _: None), progress or (lambda _: None))


class _SelfJoin:
    def __init__(self, loops: Kernels, rows: JoinedRows, k: int, workers: int) -> None:
        self._loops, self._table, self._k, self._workers, count = loops, rows, k, workers, len(rows)
        self._scores = np.full((count, k), _NOTHING, np.float32)
        self._rows = np.full((count, k), -1, np.int64)
        self._reaches = np.full(count + PADDED, LEAST, np.float32)
        self._reaches[count:] = np.inf
        self._locks = np.zeros(count, np.uint8)
        self._squares = np.zeros(count)
        self._counts = np.zeros(2, np.int64)  # pairs examined on their own, and scored
        self._looked_at = 0.0  # pairs

    def prepare(self) -> bool:
        """Codes of all rows, in the order of their numbers; False where they do not pay."""
        rows = self._table
        sample = rows.sample()
        directions = find_directions(sample, self._workers)
        widths = choose_stages(measure_left(rows, sample, directions, self._k), rows.dim)
        if not widths:
            return False
        largest = 63 if self._loops.adds_in_16_bits else 127  # of both sides: four products stay below 2**15
        self._codes = JoinCodes(len(rows), rows.dim, sample, directions, widths, largest)
        self._codes.fill(rows, self._workers, self._measure)
        self._lengths = np.sqrt(self._squares)
        return bool((self._lengths > _LENGTHS[0]).all() and (self._lengths < _LENGTHS[1]).all())

    def _measure(self, places: NDArray[np.int64]) -> None:
        table, here = self._table, self._table.addresses[places]
        room, squares = np.empty(table.dim + _PANEL), np.empty(len(places))
        self._loops.fold_squares(address(here), self._is_half, table.dim, len(places), address(room), address(squares))
        self._squares[places] = squares

    @property
    def _is_half(self) -> bool:
        return self._table.dtype == torch.float16

    def begin(self) -> None:
        """The order of the rows, and the first neighbours of each."""
        cells = find_cells(self._codes, len(self._table), self._workers)
        self._set_order(cells.order)
        near = cells.near(_NEAR_CELLS)
        for first in range(0, len(self._table), BLOCK_ROWS):
            self._seek_near(first, cells, near)
        self._done = 0

    def resume(self, known: Joined) -> None:
        self._set_order(np.searchsorted(self._table.numbers, known.order))
        self._scores[:], self._rows[:], self._done = known.scores, known.rows, known.done
        full = known.rows[:, -1] >= 0
        self._reaches[: len(full)][full] = known.scores[full, -1] - np.float32(1e-6)

    def _set_order(self, order: NDArray[np.int64]) -> None:
        self._table.set_order(self._table.numbers[order])
        self._codes.set_order(order)
        self._lengths = self._lengths[order]

    def _seek_near(self, first: int, cells: Cells, near: NDArray[np.int64]) -> None:
        """Scores what seems nearest to the rows of a block in the cells around them."""
        count, top, shared = min(BLOCK_ROWS, len(self._table) - first), self._k + 3, np.zeros(1, np.int64)
        begins = np.arange(first, first + count, _PANEL)
        lasts = np.minimum(begins + _PANEL, first + count) - 1
        own, middle, other = (
            np.searchsorted(cells.edges, places, side="right") - 1 for places in (begins, (begins + lasts) // 2, lasts)
        )
        looked = np.sort(np.concatenate([near[middle], own[:, None], other[:, None]], 1), 1)
        ranges = np.stack([cells.edges[looked], cells.edges[looked + 1]], 2)
        again = np.nonzero(looked[:, 1:] == looked[:, :-1])
        ranges[again[0], again[1], 1] = ranges[again[0], again[1], 0]
        block = _Block(self, first, count)

        def look(part: int, worker: int) -> None:
            highest, rows = np.empty((_PANEL, top), np.float32), np.zeros((_PANEL, top), np.int64)
            room = np.empty(self._table.dim + _PANEL)
            self._loops.join_near(
                block.address, address(ranges), ranges.shape[1], top, address(shared), address(highest),
                address(rows), address(room),
            )  # fmt: skip

        spread(look, self._workers, self._workers)

    def run(self, save: Callable[[Joined], None], progress: Callable[[int], None]) -> Joined | None:
        """None where so many pairs are left that all products are faster."""
        count, told, saved = len(self._table), 0, time.perf_counter()
        interval = _BETWEEN_SAVES[0]
        while True:
            part = 1 - (1 - self._done / count) ** 2  # of the pairs
            progress(int(part * count) - told)
            told = int(part * count)
            if self._done == count:
                return self._known()
            self._compare(self._done)
            self._done = min(count, self._done + BLOCK_ROWS)
            if self._is_slow():
                progress(-told)
                return None
            if time.perf_counter() - saved > interval:
                begin = time.perf_counter()
                save(self._known())
                saved = time.perf_counter()
                interval = max(_BETWEEN_SAVES[0], _BETWEEN_SAVES[1] * (saved - begin))

    def _known(self) -> Joined:
        return Joined(self._table.numbers, self._scores, self._rows, self._done)

    def _is_slow(self) -> bool:
        """Whether what was left by the codes took longer than all products of these pairs would."""
        examined, scored = (float(count) for count in self._counts)
        spent = examined * COSTS.pair + scored * COSTS.closer(self._table.dim)
        return spent > COSTS.most(self._table.dim) * max(self._looked_at, 64 * self._k * len(self._table))

    def _compare(self, first: int) -> None:
        """The rows of a block with each other and with all rows after them."""
        count = len(self._table)
        edges, shared = np.arange(first, count, _RANGE_ROWS), np.zeros(1, np.int64)
        ranges = np.stack([edges, np.minimum(edges + _RANGE_ROWS, count)], 1)
        block = _Block(self, first, min(BLOCK_ROWS, count - first))

        def look(part: int, worker: int) -> None:
            room = np.empty(self._table.dim + _PANEL)
            self._loops.join_rows(
                block.address, address(ranges), len(ranges), address(shared), address(self._counts), address(room)
            )

        spread(look, self._workers, self._workers)
        self._looked_at += (count - first) * float(block.count)


class _Block:
    """What compiled loops read for some rows that follow each other: their codes as those of queries, and the rest."""

    def __init__(self, join: _SelfJoin, first: int, count: int) -> None:
        codes, table, self.count = join._codes, join._table, count
        self._held: list[Any] = []
        fields = [self._stage(codes, number, first) for number in range(len(codes.stages))]
        self._stages = (_StageFields * len(fields))(*fields)
        self._join = _JoinFields(
            ctypes.addressof(self._stages), len(fields), address(codes.leading), address(codes.norms),
            address(table.addresses), join._is_half, table.dim, address(join._lengths), address(table.numbers),
            join._k, address(join._scores), address(join._rows), address(join._reaches), address(join._locks),
            codes.slack, 1.01 * rounding(table.dim), first, count,
        )  # fmt: skip
        self.address = ctypes.addressof(self._join)

    def _stage(self, codes: JoinCodes, number: int, first: int) -> _StageFields:
        stage, count = codes.stages[number], self.count
        width = stage.codes.shape[1]
        lanes = np.zeros((-(-count // _LANES) * _LANES, width), np.uint8)
        np.subtract(stage.codes[first : first + count], codes.offset, out=lanes[:count])
        excess = codes.offset * lanes.view(np.int8).sum(1, dtype=np.int32)
        if number < len(codes.stages) - 1:  # four codes of each row of a panel follow each other
            fours = lanes.view(np.int32).reshape(-1, _PANEL, width // 4)
            lanes = np.ascontiguousarray(fours.transpose(0, 2, 1))
        self._held += [lanes, excess]
        return _StageFields(
            address(stage.codes), address(lanes), address(excess), address(stage.rests), address(stage.errors), width,
            stage.scale**2,
        )  # fmt: skip

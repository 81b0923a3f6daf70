"""faiss's exhaustive search: over the stored rows on the CPU or on GPUs, where the canonical ranking decides.

faiss's scores are off by the rounding of float32, or of float16 on a GPU. So it is asked for more than k, and an answer
counts once the last of them is below the k-th canonical score by more than that rounding; until then it is asked for
twice as many.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.compute.device import count_devices, free_memory
from actstore.compute.tensors import spread, worker_threads
from actstore.errors import InvalidInputError
from actstore.search.exact import ExactSearch
from actstore.search.ranking import Neighbours, Pairs, rank, rounding
from actstore.search.table import Rows, RowTable, SelectedRows, parse_k, parse_vectors, unit

if TYPE_CHECKING:
    from actstore.split import Split

LEAST_BLOCK = 4096  # rows; smaller ones would take longer to send than a search on the CPU
MOST = 2048  # neighbours that faiss finds on a GPU at a time
BLOCK_BYTES = 1 << 29  # of host memory that a block of unit rows is made in, before it is sent
WORKING_BYTES = 1 << 29  # of the card for faiss's own intermediate results
_PIECE = 2048  # rows made unit at a time, through float64: 100 MB at 2048 dimensions
HALF_ROUNDED = 1.01 * 2.0**-10  # how much of a cosine float16 takes from row and query before they are multiplied
_BLOCK = 8192
_SENT = 1 << 16  # rows that faiss gets at a time, in fp32: 512 MiB at 2048 dimensions
Found = tuple[NDArray[np.float32], NDArray[np.int64]]
Nearest = Callable[[Tensor, int], Found]


def nearest_by_faiss(directions: Tensor, rows: Tensor, k: int) -> Found:
    """Unit vectors (n, dim) and unit rows (m, dim), both float32 -> scores (n, k) descending, rows (n, k).

    The search of `IndexFlatIP`, over memory that is there already: an index would copy it, and grow by doubling."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    found: Found = faiss.knn(directions.numpy(), rows.numpy(), k, metric=faiss.METRIC_INNER_PRODUCT)
    return found


class FaissSearch:
    """Every row sent to faiss as a unit vector in float32, block by block; the canonical ranking decides.

    Memory beside the rows: a block of them in float32."""

    _rounded = 0.0  # see `certified`

    def __init__(self, rows: Split | Tensor | Any) -> None:
        self.table = rows if isinstance(rows, RowTable) else RowTable(rows)

    def search(self, vectors: Any, k: int = 10, rows: Rows | None = None) -> Neighbours:
        """As `ExactSearch.search` by cosine, with the same answers."""
        if rows is not None:
            scores, places = FaissSearch(SelectedRows(self.table, rows)).search(vectors, k)
            return scores, rows[places]
        queries = parse_vectors(vectors, self.table.dim)
        return certified(self.table, queries, parse_k(k, len(self.table)), self._nearest, self._rounded)

    def _nearest(self, directions: Tensor, count: int) -> Found:
        """The best of each block joined with the best until then."""
        scores, rows = np.empty((len(directions), 0), np.float32), np.empty((len(directions), 0), np.int64)
        for start, (found, places) in self._search_blocks(directions, count):
            scores, rows = np.concatenate([scores, found], 1), np.concatenate([rows, places + start], 1)
            best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
            scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
        return scores, rows

    def _search_blocks(self, directions: Tensor, count: int) -> Iterator[tuple[int, Found]]:
        """The first row of each block, and the best that are in it."""
        held = torch.empty(min(_SENT, len(self.table)), self.table.dim)
        for start in range(0, len(self.table), _SENT):
            units = held[: len(self.table) - start]
            fill_unit(self.table, start, units)
            yield start, nearest_by_faiss(directions, units, min(count, len(units)))


def fill_unit(table: RowTable, first: int, out: Tensor) -> None:
    """out (n, dim) float32 = the rows from `first` on, of length one."""

    def fill(part: int, worker: int) -> None:
        start, stop = part * _BLOCK, min(len(out), (part + 1) * _BLOCK)
        for begin in range(start, stop, 1024):  # the length is taken in float64
            end = min(stop, begin + 1024)
            out[begin:end] = unit(table.read(first + begin, first + end))

    with worker_threads() as workers:
        spread(fill, -(-len(out) // _BLOCK), workers)


@dataclass(frozen=True)
class CardPlan:
    """What a search takes of a card: `bytes_per_row` of its memory for each row that it holds, here for all of them
    (resident) or for `block_rows` at a time, beside its `working` bytes. The host holds BLOCK_BYTES and a piece."""

    bytes_per_row: int
    working: int
    resident: bool
    block_rows: int


def plan_card(rows: int, dim: int, free: int | None, resident: bool | None, card: str) -> CardPlan:
    """For a card with so many free bytes (None: it cannot be asked). resident: None for all rows where they fit.

    In blocks every row is sent again in every search; a block is one of host memory, or what fits.
    """
    per_row, in_float32 = 2 * dim, max(1, BLOCK_BYTES // (4 * dim))  # rows of a block on its way into an index
    needed = rows * per_row + min(rows, in_float32) * 4 * dim + WORKING_BYTES
    fits = free is None or needed <= free
    if resident and not fits:
        raise InvalidInputError(
            f"{rows:,} rows of {dim} dimensions need {needed / 1e9:.2f} GB of {card} ({per_row:,} bytes a row), which "
            f"has {(free or 0) / 1e9:.2f} GB free; search them in blocks, or on the CPU"
        )
    if fits and resident is not False:
        return CardPlan(per_row, WORKING_BYTES, True, in_float32)
    in_blocks = max(1, BLOCK_BYTES // per_row)
    fitting = in_blocks if free is None else (free - WORKING_BYTES) // per_row
    if fitting < min(rows, LEAST_BLOCK):
        raise InvalidInputError(
            f"{card} has {(free or 0) / 1e9:.2f} GB free, too little to search {dim} dimensions even in blocks: "
            f"{(WORKING_BYTES + LEAST_BLOCK * per_row) / 1e9:.2f} GB are needed; free some of it, or use device cpu"
        )
    return CardPlan(per_row, WORKING_BYTES, False, min(fitting, in_blocks))


class GpuSearch(FaissSearch):
    """resident: hold all rows on the card in float16, 2 bytes a value, or send them block by block in every search;
    None: hold them where they fit. device: the card's number, as in cuda:1."""

    _rounded = HALF_ROUNDED

    def __init__(self, rows: Split | Tensor | Any, *, resident: bool | None = None, device: int = 0) -> None:
        require_gpu(device)
        super().__init__(rows)
        card = torch.device("cuda", device)
        free = free_memory(card) if count_devices("cuda") > device else None
        self.plan = plan_card(len(self.table), self.table.dim, free, resident, str(card))
        self._device, self._resources = device, faiss.StandardGpuResources()
        self._resources.setTempMemory(WORKING_BYTES)
        self._held = [self._hold(start, stop) for start, stop in self._blocks()] if self.plan.resident else []

    def search(self, vectors: Any, k: int = 10, rows: Rows | None = None) -> Neighbours:
        """As `ExactSearch.search` by cosine, with the same answers; some of the rows are searched on the CPU."""
        return super().search(vectors, k) if rows is None else ExactSearch(self.table).search(vectors, k, rows)

    def _blocks(self) -> list[tuple[int, int]]:
        count, step = len(self.table), self.plan.block_rows
        return [(start, min(count, start + step)) for start in range(0, count, step)]

    def _hold(self, start: int, stop: int) -> Any:
        """An index of its own for every block: one that grows would copy all that it holds each time."""
        config = faiss.GpuIndexFlatConfig()
        config.useFloat16, config.device = True, self._device
        index = faiss.GpuIndexFlatIP(self._resources, self.table.dim, config)
        index.add(self._units(start, stop, np.float32))
        return index

    def _search_blocks(self, directions: Tensor, count: int) -> Iterator[tuple[int, Found]]:
        queries = directions.numpy() if self.plan.resident else directions.half().numpy()
        for place, (start, stop) in enumerate(self._blocks()):
            yield start, self._search_block(place, start, stop, queries, min(count, stop - start))

    def _search_block(self, place: int, start: int, stop: int, queries: NDArray[Any], count: int) -> Any:
        if self.plan.resident:
            return self._held[place].search(queries, count)
        return faiss.knn_gpu(
            self._resources, queries, self._units(start, stop, np.float16), count,
            metric=faiss.METRIC_INNER_PRODUCT, device=self._device,
        )  # fmt: skip

    def _units(self, start: int, stop: int, dtype: type[np.floating[Any]]) -> NDArray[Any]:
        """(stop - start, dim) unit rows; made in pieces, since a block in float64 would be four times as large."""
        block = np.empty((stop - start, self.table.dim), dtype)
        for first in range(start, stop, _PIECE):
            piece = unit(self.table.read(first, min(stop, first + _PIECE)))
            torch.from_numpy(block[first - start : first - start + len(piece)]).copy_(piece)
        return block


def certified(table: RowTable, queries: Tensor, k: int, nearest: Nearest, rounded: float = HALF_ROUNDED) -> Neighbours:
    """The k nearest of queries (n, dim), from a search whose scores are off by the rounding of float16 at most.

    nearest: unit vectors (n, dim) and a count -> scores (n, count) descending, and rows. rounded: how much row and
    query lose of a cosine before they are multiplied, in sums of float32.
    """
    margin = rounded + 2 * rounding(table.dim)
    scores, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    open_, count = np.arange(len(queries)), min(len(table), MOST, 2 * k + 32)
    while len(open_):
        chosen = queries[torch.from_numpy(open_)]
        found, places = nearest(unit(chosen), count)
        owners = np.repeat(np.arange(len(open_)), count)
        pairs = Pairs(places.ravel().astype(np.int64), owners, np.empty(0, np.float32))
        scores[open_], rows[open_] = rank(table, chosen, pairs, k, "cosine")
        if count == len(table):
            break
        open_ = open_[found[:, -1] + margin >= scores[open_, -1]]
        if count == MOST and len(open_):
            warnings.warn(
                f"{len(open_)} queries have more than {MOST:,} rows too close to tell apart; all products do",
                stacklevel=3,
            )
            scores[open_], rows[open_] = ExactSearch(table).search(queries[torch.from_numpy(open_)], k)
            break
        count = min(len(table), MOST, 2 * count)
    return scores, rows


def has_gpu() -> bool:
    """Whether faiss can compute on one."""
    return hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus() > 0


def require_gpu(device: int = 0) -> None:
    if not hasattr(faiss, "StandardGpuResources"):
        raise InvalidInputError(
            "a GPU was asked for, but this faiss has no GPU code; install faiss-gpu, or use the CPU"
        )
    if (count := faiss.get_num_gpus()) <= device:
        found = f"only {count} on this machine, not cuda:{device}" if count else "none on this machine"
        raise InvalidInputError(f"a GPU was asked for, but faiss finds {found}; use device cpu")

"""Which levels a bounded index should have: from what they leave of the rows, and what products cost here."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from actstore.search.bounds import open_bounds
from actstore.search.compiled import kernels
from actstore.search.exact import ExactSearch, multiply
from actstore.search.integers import MOST_CODES, least_seconds
from actstore.search.levels import FACTORS, TAIL, Levels
from actstore.search.queries import unit
from actstore.search.query_codes import QueryCodes
from actstore.search.ranking import Pairs
from actstore.search.rotation import SAMPLE, rotate, rotation_error, sample_rows
from actstore.search.scoring import score_pairs
from actstore.search.sieve import LEAST
from actstore.search.table import RowTable
from actstore.streams.sampling import Stream, generator

WIDTHS = (16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 896, 1024, 1152, 1280, 1408)
_PROBES, _PROBE_K = 32, 10
_BATCH = 32  # queries
_MOST_BYTES = 0.72  # of the coordinates of a row: an index stays below the size of the rows in float16 by far
_CALLS = 40e-6  # seconds a query for the calls of a second level
_TRIED = 16_384  # rows of a product that is timed
_BEYOND_CACHE = 1 << 27  # bytes of codes that are gathered from
# seconds for a pair that the first level leaves, but for the gathering: measured in searches
_COLLECTED, _COLLECTED_BY_TORCH = 60e-9, 300e-9


@dataclass(frozen=True)
class Costs:
    """Seconds of one thread on this machine. Of a byte that is read from memory, while all threads read. Of a row and
    query in a batch: product + coordinate * width with codes, and exact with all of a row. Of a pair that is gathered:
    pair + pair_byte * width with codes, pair_full exactly."""

    byte: float
    product: float
    coordinate: float
    exact: float
    pair: float
    pair_byte: float
    pair_full: float


def measure_narrowing(table: RowTable, directions: Tensor, seed: int = 0) -> dict[int, float]:
    """Share of the rows that so many coded coordinates leave for a query. Probes are rows, not their own neighbours."""
    sample = sample_rows(table, SAMPLE, seed)
    if len(sample) <= _PROBE_K:
        return {}
    probes = sample[torch.from_numpy(generator(seed, 1, Stream.INDEX_PROBES).permutation(len(sample))[:_PROBES])]
    scores, _ = ExactSearch(table).search(probes, _PROBE_K + 1)
    kth = torch.from_numpy(scores[:, -1].copy())
    rows, queries = rotate(sample, directions.float()), rotate(probes, directions.float())
    found, products, done = {}, torch.zeros(len(rows), len(queries)), 0
    for width in [width for width in WIDTHS if width < rows.shape[1]]:
        end = width + 1
        products += rows[:, done:end] @ queries[:, done:end].T
        rest = rows[:, end:].norm(dim=1)[:, None] * queries[:, end:].norm(dim=1)
        coded = rows[:, 1:end].norm(dim=1)[:, None] * queries[:, 1:end].norm(dim=1)
        slack = coded * coding_error(width) + 2 * rotation_error(end, rows.shape[1])
        found[width] = float((products + rest + slack >= kth).float().mean())
        done = end
    return found


def coding_error(width: int) -> float:
    """About how much codes of both sides add to a bound, as a share of both norms: the largest of `width` normal
    coordinates makes a step of the codes, and each loses up to half of one."""
    return float(2 * np.sqrt(2 * np.log(2 * width) / 12) / 127)


def measure_costs(table: RowTable) -> Costs:
    """A second or so of products with the table's own rows, and with codes."""
    narrow, wide = (_code_seconds(width, len(table)) for width in (64, 512))
    step = (wide[0] - narrow[0]) / (512 - 64)
    pair_step = (wide[1] - narrow[1]) / (512 - 64)
    return Costs(
        byte=_byte_seconds(),
        product=max(0.0, narrow[0] - 64 * step),
        coordinate=step,
        exact=_exact_seconds(table),
        pair=max(0.0, narrow[1] - 64 * pair_step),
        pair_byte=max(0.0, pair_step),
        pair_full=_full_seconds(table),
    )


def _byte_seconds() -> float:
    """Of a thread, while all of them read: together they may be no faster than one."""
    memory, taken = torch.ones(_BEYOND_CACHE // 8, dtype=torch.int64), []
    for _ in range(4):
        begin = time.perf_counter()
        memory.sum()
        taken.append(time.perf_counter() - begin)
    return min(taken) * torch.get_num_threads() / memory.nbytes


def _code_seconds(width: int, count: int) -> tuple[float, float]:
    """Of a row and query in a batch; of a gathered pair. Codes are more than the cache holds, if `count` rows are."""
    rows = min(_BEYOND_CACHE // width, max(_TRIED, count))
    codes, factors = torch.ones(rows, width, dtype=torch.uint8), torch.rand(rows, FACTORS)
    second = torch.ones(rows, width + TAIL, dtype=torch.uint8)
    levels = Levels((width, width), 0.0, torch.rand(1 + 2 * width, 16), factors, codes, second)
    bounds = open_bounds(levels, QueryCodes(unit(torch.rand(_BATCH, 16)), levels))
    tried = np.array([[0, min(rows, _TRIED)]])
    never, always = np.full(_BATCH, 2.0**30, np.float32), np.full(_BATCH, LEAST)
    chosen = iter(np.random.default_rng(0).integers(0, rows, (8, 1024)))  # others each time: never in the cache
    owners, scores = np.sort(np.arange(1024) % _BATCH), np.zeros(1024, np.float32)
    product = least_seconds(lambda: bounds.reaching(tried, never, 1, 1, np.inf))
    gather = least_seconds(lambda: bounds.within(Pairs(next(chosen), owners, scores), always, 1, again=True))
    return product / min(rows, _TRIED) / _BATCH, gather / 1024


def _exact_seconds(table: RowTable) -> float:
    count = min(len(table), 2048)
    rows, out = table.read(0, count), torch.empty(count, _BATCH)
    directions, buffer = torch.rand(table.dim, _BATCH), torch.empty(table.piece_rows * table.dim)
    return least_seconds(lambda: multiply(rows, directions, buffer, out)) / count / _BATCH


def _full_seconds(table: RowTable) -> float:
    count = min(len(table), 1024)
    several = np.random.default_rng(0).integers(0, len(table), (8, count))
    chosen = iter(several)
    owners, scores, query = np.zeros(count, np.int64), np.zeros(count, np.float32), torch.rand(1, table.dim)
    table.take(several.ravel())  # pages of a mapped store: the first touch costs more than every one after it
    return least_seconds(lambda: score_pairs(table, query, Pairs(next(chosen), owners, scores), 1)) / count


def choose_widths(narrowing: dict[int, float], rows: int, dim: int, costs: Costs) -> tuple[int, ...]:
    """Codes of one or two levels that cost least for a batch and for a single query, which waits for memory; none where
    the plain product of a batch is as good."""
    collected = _COLLECTED_BY_TORCH if kernels() is None else _COLLECTED
    batch: dict[tuple[int, ...], float] = {}
    single: dict[tuple[int, ...], float] = {}
    for first, left in narrowing.items():
        if first > MOST_CODES:
            continue
        after_first: dict[tuple[int, ...], float] = {(first,): left * (collected + costs.pair_full)}
        for total, after in narrowing.items():
            second = total - first
            if 64 <= second <= MOST_CODES and total <= _MOST_BYTES * dim:
                again = left * (collected + costs.pair + costs.pair_byte * second)
                after_first[first, second] = again + after * costs.pair_full + _CALLS / rows
        for plan, more in after_first.items():
            batch[plan] = costs.product + costs.coordinate * first + more
            single[plan] = costs.byte * first + more
    affordable = [plan for plan, cost in batch.items() if cost < 0.7 * costs.exact]
    if not affordable:
        return ()
    least = min(batch.values()), min(single.values())
    return min(affordable, key=lambda plan: batch[plan] / least[0] + single[plan] / least[1])

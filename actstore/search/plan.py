"""Making, extending and opening the levels of a bounded index, and which it should have: from what they leave of the
rows, and what products cost here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from actstore.compute.tensors import spread, worker_threads
from actstore.errors import DamagedError, InvalidInputError
from actstore.progress import Progress
from actstore.search.bounds import open_bounds
from actstore.search.compiled import MOST_CODES, kernels, least_seconds
from actstore.search.exact import ExactSearch, multiply
from actstore.search.index_files import TYPES, Kept, building, create_tensors, find_loaded, load_tensors, publish
from actstore.search.levels import (
    FACTORS,
    SAMPLE,
    TAIL,
    Levels,
    QueryCodes,
    encode_levels,
    level_shapes,
    principal,
    rotate,
    rotation_error,
    sample_rows,
    skewness,
    turned,
)
from actstore.search.ranking import LEAST, Pairs, score_pairs
from actstore.search.table import RowTable, unit
from actstore.streams.sampling import Stream, generator

if TYPE_CHECKING:
    from actstore.split import Split


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


NAME = "bounded"
_BLOCK = 2048


def build_levels(table: RowTable, progress: Progress | None = None, again: bool = False) -> Levels:
    """Fitted, decided on and filled; kept beside the store where the table is a split. An index of the split's first
    rows is extended, unless it is to be made `again`. Of two processes that do this at once, one is refused."""
    table.check()
    if table.split is None:
        return _build_levels(table, progress, again)
    with building(table.split, NAME):
        return _build_levels(table, progress, again)


def _build_levels(table: RowTable, progress: Progress | None, again: bool) -> Levels:
    if table.split is not None and not again:
        found = _usable(table.split)
        if found is not None and 0 < found[0].rows < len(table) and found[0].settings["widths"]:
            if progress is not None:
                progress(found[0].rows)  # with the same directions and widths; these rows are copied
            return _write(table, _levels(*found), found[0].settings, progress)
    directions = principal(sample_rows(table, SAMPLE))
    narrowing = measure_narrowing(table, directions)
    widths = choose_widths(narrowing, len(table), table.dim, measure_costs(table))
    settings = {"widths": list(widths), "left": {str(width): left for width, left in narrowing.items()}}
    basis = turned(directions, widths) if widths else torch.empty(0, table.dim)
    empty = torch.empty(0)
    made = Levels(widths, skewness(basis) if widths else 0.0, basis, empty, empty, empty)
    return _write(table, made, {**settings, "skew": made.skew}, progress)


def _usable(split: Split) -> tuple[Kept, dict[str, Tensor]] | None:
    try:
        return find_loaded(split, NAME, load_tensors)
    except (InvalidInputError, DamagedError):  # of other rows, of another version, or damaged: made anew
        return None


def _write(table: RowTable, before: Levels, settings: dict[str, Any], progress: Progress | None) -> Levels:
    """Levels of all rows with the directions given, and with what is there already of their first rows."""
    shapes = level_shapes(len(table), table.dim, before.widths)
    if table.split is None:
        made: dict[str, Any] = {name: np.zeros(shape, TYPES[kind]) for name, (kind, shape) in shapes.items()}
        _fill(table, made, before, progress)
        return Levels(before.widths, before.skew, **{name: torch.from_numpy(array) for name, array in made.items()})

    def write(path: Path) -> None:
        arrays = create_tensors(path, shapes)
        _fill(table, arrays, before, progress)
        for array in arrays.values():
            array.flush()  # type: ignore[attr-defined]

    publish(table.split, NAME, ".safetensors", settings, write)
    return load_levels(table.split)


def load_levels(split: Split) -> Levels:
    """Mapped from the disk; refused where they belong to other content. They may cover the first rows only."""
    found = find_loaded(split, NAME, load_tensors)
    if found is None:
        raise InvalidInputError(
            f"split {split.name!r} of {split.store_path} has no bounded index; "
            f"build it with `actstore index {split.store_path} --split {split.name} --kind {NAME}`"
        )
    return _levels(*found)


def _levels(kept: Kept, tensors: dict[str, Tensor]) -> Levels:
    return Levels(tuple(kept.settings["widths"]), kept.settings["skew"], **tensors)


def _fill(table: RowTable, arrays: dict[str, Any], before: Levels, progress: Progress | None) -> None:
    widths = before.widths
    if not widths:
        return
    arrays["directions"][...] = before.directions.numpy()
    outs = {name: torch.from_numpy(arrays[name]) for name in ("factors", "first", "second")}
    first = len(before.first)
    for name, out in outs.items():
        if first:
            out[:first] = getattr(before, name)
    step = table.block_rows or _BLOCK

    def fill(part: int, worker: int) -> None:
        done = first + part * step
        block = table.read(done, min(len(table), done + step))
        for start in range(0, len(block), _BLOCK):
            piece = block[start : start + _BLOCK]
            for name, values in encode_levels(piece, before).items():
                outs[name][done + start : done + start + len(piece)] = values
        if progress is not None:
            progress(len(block))

    with worker_threads() as workers:
        spread(fill, -(-(len(table) - first) // step), workers)

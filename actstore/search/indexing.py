"""Building an approximate index block by block, and choosing its effort on queries it does not hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actstore.errors import ActstoreError, InvalidInputError
from actstore.progress import Progress, human_bytes
from actstore.search.approximate import ApproximateSearch, IndexSettings, parse_kind, structure
from actstore.search.bounded import BoundedSearch
from actstore.search.exact import ExactSearch
from actstore.search.index_files import building
from actstore.search.levels import fit_directions, rotate, sample_rows
from actstore.search.table import RowTable, parse_vectors, unit
from actstore.streams.sampling import Stream, generator

if TYPE_CHECKING:
    from actstore.split import Split

_TRAINED_ON = 65_536  # rows at most
_BLOCK = 8192
_QUERIES = 256
_RECALL = 0.95
_FEWEST_HELD = 50  # new rows that are worth a recall of their own


@dataclass(frozen=True)
class BuiltIndex:
    """What `actstore index` made. facts: as --json prints them. text: the same in a line. reached: whether the recall
    that was asked for is there; a bounded index is exact."""

    facts: Mapping[str, Any]
    text: str
    reached: bool = True


def index_split(
    split: Split, kind: str = "bounded", *, queries: Split | Any = None, again: bool = False,
    progress: Progress | None = None, **settings: Any,
) -> BuiltIndex:  # fmt: skip
    """Build what makes searches of a split faster, or extend it, and keep it beside the store.

    kind: bounded, which stays exact, or one of faiss's approximate indexes. queries: vectors (n, dim), or a split of
    which some rows measure the recall. again: build anew where an index of earlier rows could be extended.
    settings: dims, lists, refine, recall and seed of an approximate index, as in `build_index`.
    """
    if kind == "bounded":
        bounded = BoundedSearch.build(split, progress, again)
        widths = list(bounded.levels.widths)
        text = (
            f"{' then '.join(map(str, widths))} of {split.dim} coordinates, {human_bytes(bounded.nbytes)}"
            if bounded.prunes
            else "which says that leading coordinates do not tell these rows apart: searches use all products"
        )
        return BuiltIndex({"prunes": bounded.prunes, "widths": widths, "bytes": bounded.nbytes}, text)
    if hasattr(queries, "take"):
        if queries.name == split.name and str(queries.store_path) == str(split.store_path):
            raise InvalidInputError(f"the queries must be of another split than {split.name}, which is indexed")
        count = min(_QUERIES, len(queries))  # spread over all of it
        queries = queries.take(generator(settings.get("seed", 0), 0).choice(len(queries), count, replace=False))
    engine, path = keep_index(split, kind, again=again, queries=queries, progress=progress, **settings)
    made, size = engine.settings, path.stat().st_size
    reached = made.recall >= settings.get("recall", _RECALL)
    facts = {**asdict(made), "recall_reached": reached, "held_out": len(made.held_out), "bytes": size}
    text = (
        f"{made.dims} of {split.dim} coordinates, {human_bytes(size)}, effort {made.effort}: it finds "
        f"the nearest row of {made.recall:.1%} of {made.queries} held-out queries"
    )
    return BuiltIndex(facts, text, reached)


def keep_index(
    split: Split,
    kind: str,
    *,
    again: bool = False,
    queries: Any = None,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[ApproximateSearch, Path]:
    """Build the index of a split, or extend the one of its first rows, and keep it beside the store; returns its file,
    too. Of two processes that do this at once, one is refused.

    again: build it anew also where it could be extended. options: as in `build_index`.
    """
    with building(split, parse_kind(kind)):
        before = None if again else _extensible(split, kind, options)
        if before is None:
            engine = build_index(split, kind, queries=queries, progress=progress, **options)
        else:
            asked = {name: options[name] for name in ("recall", "seed") if name in options}
            engine = extend_index(before, queries=queries, progress=progress, **asked)
        return engine, engine.save()


def _extensible(split: Split, kind: str, options: Mapping[str, Any]) -> ApproximateSearch | None:
    """The index of the split's first rows, where there is one of the settings asked for."""
    try:
        before = ApproximateSearch.load(split, kind)
    except ActstoreError:  # none, or of other rows, or damaged: built anew
        return None
    same = all(options.get(name) in (None, getattr(before.settings, name)) for name in ("dims", "lists", "refine"))
    return before if same and before.covered < len(split) else None


def build_index(
    rows: Split | Tensor | Any,
    kind: str = "pq",
    *,
    dims: int | None = None,
    lists: int | None = None,
    refine: int | None = None,
    recall: float = _RECALL,
    queries: Any = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> ApproximateSearch:
    """The least effort whose recall of the nearest row reaches `recall` on held-out queries.

    queries (n, dim): vectors that are not among the rows, such as another split's. Without them some rows are left
    out of the index until the recall is measured. `progress` gets rows as they are added.
    """
    table = rows if isinstance(rows, RowTable) else RowTable(rows)
    settings = _settings(parse_kind(kind), table, dims, lists, refine)
    if not 0 < recall <= 1:
        raise InvalidInputError(f"recall must be above 0 and at most 1, got {recall}")
    table.check()
    held = () if queries is not None else _hold_out(table, seed)
    probes = table.take(np.array(held, np.int64)).float() if queries is None else queries
    settings = replace(settings, held_out=held)
    directions = _directions(table, settings, seed)
    inner = structure(settings)
    faiss.omp_set_num_threads(torch.get_num_threads())
    inner.train(rotate(sample_rows(table, max(_TRAINED_ON, 40 * settings.lists), seed), directions).numpy())
    engine = ApproximateSearch(table, _with_rotation(inner, directions), settings)
    first = len(table) - len(held)
    _add(engine, directions, 0, first, progress)
    engine.settings = _choose_effort(engine, probes, recall, held)
    _add(engine, directions, first, len(table), progress)
    return engine


def extend_index(
    before: ApproximateSearch,
    *,
    recall: float = _RECALL,
    queries: Any = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> ApproximateSearch:
    """With the rows that were appended since; structure and directions stay, the effort is chosen anew.

    queries: as in `build_index`; without them some of the new rows are held out until the recall is measured, or, where
    there are too few, rows of the index look for their nearest other row.
    """
    table, old = before.table, before.settings
    if before.covered == len(table):
        return before
    held = () if queries is not None else _hold_out(table, seed, before.covered)
    held = held if len(held) >= _FEWEST_HELD else ()
    settings = replace(old, extended=(*old.extended, (before.covered, held)))
    engine = ApproximateSearch(table, before.index, settings)
    directions = _stored_directions(before.index)
    faiss.omp_set_num_threads(torch.get_num_threads())
    if progress is not None:
        progress(before.covered)
    first = len(table) - len(held)
    _add(engine, directions, before.covered, first, progress)
    if queries is None and not held:
        engine.settings = _choose_effort(engine, None, recall, _hold_out(table, seed))
    else:
        probes = table.take(np.array(held, np.int64)).float() if queries is None else queries
        engine.settings = _choose_effort(engine, probes, recall, held)
    _add(engine, directions, first, len(table), progress)
    return engine


def _stored_directions(index: Any) -> Tensor:
    """(dims, dim) of the rotation that an index was built with."""
    transform: Any = faiss.downcast_VectorTransform(index.chain.at(0))
    values: NDArray[np.float32] = faiss.vector_to_array(transform.A)
    return torch.from_numpy(values.reshape(transform.d_out, transform.d_in))


def _settings(kind: Any, table: RowTable, dims: int | None, lists: int | None, refine: int | None) -> IndexSettings:
    if len(table) < 1000:
        raise InvalidInputError(f"an approximate index needs 1,000 rows or more, got {len(table):,}; search exactly")
    dims = dims or min(table.dim, max(64, table.dim // 8)) // 2 * 2  # of a ResNet-50's 2048, 128 lost 7% of neighbours
    if not 2 <= dims <= table.dim or dims % 2:
        raise InvalidInputError(f"dims must be an even number from 2 to {table.dim}, got {dims}")
    lists = lists or min(int(np.sqrt(len(table))), len(table) // 40)
    if not 1 <= lists <= len(table) // 40:
        raise InvalidInputError(f"lists must be 1 to {len(table) // 40:,}, a 40th of the rows, got {lists:,}")
    refine = refine if refine is not None else 128 if kind == "pq" else 8
    if refine < 1:
        raise InvalidInputError(f"refine must be positive, got {refine}")
    return IndexSettings(kind, dims, 0 if kind == "hnsw" else lists, 1, refine)


def _directions(table: RowTable, settings: IndexSettings, seed: int) -> Tensor:
    """(dims, dim) leading directions; for pq turned at random among themselves, so that each code has a fair share."""
    directions = fit_directions(table, seed)[: settings.dims]
    if settings.kind == "pq":
        turn = generator(seed, 1, Stream.INDEX).standard_normal((settings.dims, settings.dims))
        directions = torch.from_numpy(np.linalg.qr(turn)[0]).float() @ directions
    return directions.contiguous()


def _hold_out(table: RowTable, seed: int, first: int = 0) -> tuple[int, ...]:
    """Some of the rows from `first` on: a tenth, or half of those that were appended."""
    count = len(table) - first
    share = 2 if first else 10
    chosen = first + generator(seed, 0, Stream.INDEX).choice(count, min(_QUERIES, count // share), replace=False)
    lengths = table.lengths().numpy()
    return tuple(sorted(int(row) for row in chosen if lengths[row] > 0))


def _with_rotation(inner: Any, directions: Tensor) -> Any:
    transform = faiss.LinearTransform(directions.shape[1], len(directions), False)
    faiss.copy_array_to_vector(directions.numpy().ravel(), transform.A)
    transform.is_trained = True
    return faiss.IndexPreTransform(transform, inner)  # which keeps both alive


def _add(engine: ApproximateSearch, directions: Tensor, first: int, last: int, progress: Progress | None) -> None:
    """The rows at positions first to last of the engine's order."""
    inner = faiss.downcast_index(engine.index.index)
    for start in range(first, last, _BLOCK):
        rows = engine.order[start : min(last, start + _BLOCK)]
        inner.add(rotate(unit(engine.table.take(rows).float()), directions).numpy())
        engine.index.ntotal = inner.ntotal
        if progress is not None:
            progress(len(rows))


def _choose_effort(engine: ApproximateSearch, probes: Any, wanted: float, held: tuple[int, ...]) -> IndexSettings:
    """The first of 1, 2, 4, … (then halfway back) whose recall is high enough; the highest where none is.

    probes: queries, while the rows `held` are not in the index; None: these rows are, and look for others.
    """
    inside = np.array(held, np.int64) if probes is None else None
    given = engine.table.take(inside).float() if inside is not None else probes
    queries = parse_vectors(given, engine.table.dim)[:_QUERIES]
    truth = _nearest(engine, queries, held) if inside is None else _nearest_other(engine, queries, inside)
    most = 2048 if engine.settings.kind == "hnsw" else engine.settings.lists
    effort = 16 if engine.settings.kind == "hnsw" else 1
    while (found := measure_recall(engine, queries, truth, effort, inside)) < wanted and effort < most:
        effort = min(most, 2 * effort)
    between = effort * 3 // 4
    if effort > 2 and (less := measure_recall(engine, queries, truth, between, inside)) >= wanted:
        effort, found = between, less
    return replace(engine.settings, effort=effort, recall=found, queries=len(queries))


def _nearest(engine: ApproximateSearch, queries: Tensor, held: tuple[int, ...]) -> NDArray[np.int64]:
    """(n,) the nearest row of each query among those in the index, which the held-out rows are not yet."""
    rows = np.setdiff1d(np.arange(len(engine.table)), np.array(held, np.int64))
    nearest: NDArray[np.int64] = _exact_search(engine.table).search(queries, 1, rows)[1][:, 0]
    return nearest


def _nearest_other(engine: ApproximateSearch, queries: Tensor, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return _first_other(_exact_search(engine.table).search(queries, 2)[1], rows)


def _exact_search(table: RowTable) -> BoundedSearch | ExactSearch:
    """The faster of both where its index is there: most of the time of an extension goes into true neighbours."""
    try:
        return ExactSearch(table) if table.split is None else BoundedSearch(table)
    except ActstoreError:  # no index, or one that cannot be used
        return ExactSearch(table)


def _first_other(found: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the two nearest rows (n, 2) of rows (n,) the first that is another."""
    return np.where(found[:, 0] == rows, found[:, 1], found[:, 0])


def measure_recall(
    engine: ApproximateSearch,
    queries: Tensor,
    truth: NDArray[np.int64],
    effort: int,
    inside: NDArray[np.int64] | None = None,
) -> float:
    """Share of queries (n, dim) whose nearest row, truth (n,), the search finds; inside (n,): which rows they are."""
    found = engine.search(queries, 1 if inside is None else 2, effort=effort)[1]
    nearest = found[:, 0] if inside is None else _first_other(found, inside)
    return float((nearest == truth).mean())

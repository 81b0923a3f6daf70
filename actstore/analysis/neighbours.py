"""The nearest rows of every row, exact, block by block, resumable: as a graph that other tools read (`actstore.knn`),
and among all splits that can be compared (the audit)."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.analysis.alignment import open_representation
from actstore.compute.tensors import borrow
from actstore.errors import DamagedError, InvalidInputError
from actstore.progress import Progress
from actstore.reading.adapters import arrow_texts
from actstore.search import BoundedSearch, Engine, Joined, RowTable, join_rows, open_engine
from actstore.search.table import parse_vectors
from actstore.split import Split
from actstore.storage.atomic_file import write_atomic
from actstore.storage.place import AnyPlace
from actstore.storage.tensor_file import read_tensors, write_tensors

if TYPE_CHECKING:
    import scipy.sparse

ENDINGS = (".npz", ".parquet")
BLOCK_ROWS = 4096  # queries between two writes: at most some seconds are lost by a kill
SPARE = 2  # more neighbours than asked for: the row itself and a copy of it are taken out again
_LEAST_INDEXED, _MOST_INDEXED = 20_000, 1 << 30  # rows; bytes of them
FEWEST_JOINED = 30_000  # rows that are compared with each other at once
_KIND, _JOINED_KIND = "audit block", "neighbours of all rows"
_VERSION = 1  # of the blocks that are kept of an unfinished graph


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
    queries: Split | NDArray[np.floating] | None = None,
) -> Neighbours:
    """Among the rows of all splits, one after the other, but those of zeros.

    queries: of which vectors (n, dim); by default of all rows, none of which is its own neighbour. Those are compared
    with each other once for both where this pays; else they are searched for block by block. folder: where finished
    blocks, or what is known of all rows, are kept until all is done; those of another key, or damaged ones, are made
    again. An interrupted search goes on after the last of them.
    """
    if queries is None and (joined := _join(splits, is_zero, k, folder, key, progress)) is not None:
        return joined
    starts = np.cumsum([0, *(len(split) for split in splits)]).tolist()
    asked: list[tuple[str, Split | NDArray[np.floating], int | None]] = []
    if queries is None:
        asked += [(split.name, split, start) for split, start in zip(splits, starts, strict=False)]
    else:
        asked.append(("queries", queries, None))
    engines: list[Engine] = []
    parts = [_nothing(0, k)]
    for name, vectors, start in asked:
        for rows in pieces(len(vectors)):
            file = folder / f"{name}-{rows.start}.safetensors"
            if (kept := _read(file, _KIND, key)) is not None:
                block = Neighbours(**kept[0])
            else:
                engines.extend(_engine(each) for each in splits[len(engines) :])  # not before something is to be done
                own = np.full(rows.stop - rows.start, -1)
                if start is not None:
                    own = np.arange(start + rows.start, start + rows.stop)
                block = _search_block(engines, splits, vectors[rows], own, is_zero, k)
                _write(file, _KIND, vars(block), key=key)
            parts.append(block)
            if progress is not None:
                progress(rows.stop - rows.start)
    return Neighbours(np.concatenate([part.scores for part in parts]), np.concatenate([part.places for part in parts]))


def _join(
    splits: Sequence[Split], is_zero: NDArray[np.bool_], k: int, folder: Path, key: str, progress: Progress | None
) -> Neighbours | None:
    """All rows with each other; None where a search of blocks is no slower, or has begun."""
    count, file = len(is_zero), folder / "joined-0.safetensors"
    if count < FEWEST_JOINED or _read(folder / f"{splits[0].name}-0.safetensors", _KIND, key) is not None:
        return None
    tables = [RowTable(split) for split in splits]
    values = _held_values(tables)
    if values is None:
        return None
    for table in tables:
        table.lengths()  # refuses rows that are too long or too short

    def save(known: Joined) -> None:
        arrays: dict[str, NDArray[Any]] = {"order": known.order, "scores": known.scores, "rows": known.rows}
        _write(file, _JOINED_KIND, arrays, key=key, done=known.done)

    kept = _read(file, _JOINED_KIND, key)
    before = None if kept is None else Joined(**kept[0], done=kept[1]["done"])
    joined = join_rows(values, np.flatnonzero(~is_zero), k, before, save, progress)
    if joined is None:
        return None
    if progress is not None:
        progress(count - len(joined.order))
    found = _nothing(count, k)
    is_there = joined.rows >= 0  # fewer where there are no more rows
    found.scores[joined.order] = np.where(is_there, joined.scores, np.float32(-1))
    found.places[joined.order] = joined.rows
    return found


def _held_values(tables: Sequence[RowTable]) -> list[torch.Tensor] | None:
    """Their rows, mapped or read; None where they would take too much memory."""
    held = [table.in_memory() for table in tables]
    missing = [table for table, values in zip(tables, held, strict=True) if values is None]
    if sum(len(table) * table.dim * table.dtype.itemsize for table in missing) > _MOST_INDEXED:
        return None
    return [table.read(0, len(table)) if values is None else values for table, values in zip(tables, held, strict=True)]


def remove_blocks(folder: Path) -> None:
    """The blocks of a finished or discarded search; what else lies there is not ours."""
    for file in folder.glob("*"):
        if re.fullmatch(r".+-[0-9]+\.safetensors(\.part)?", file.name):
            file.unlink(missing_ok=True)
    with suppress(OSError):  # it was never made, or holds something else
        folder.rmdir()


def _search_block(
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


def _write(file: Path, kind: str, arrays: Mapping[str, NDArray[Any]], **about: Any) -> None:
    write_tensors(file, kind, {name: torch.from_numpy(values) for name, values in arrays.items()}, about)


def _read(file: Path, kind: str, key: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """What was kept under this key: arrays, and what is said of them."""
    try:
        tensors, about = read_tensors(file, kind)
    except (DamagedError, InvalidInputError):
        return None
    return ({name: one.numpy() for name, one in tensors.items()}, about) if about.get("key") == key else None


def pieces(count: int) -> Iterator[slice]:
    """Of all rows, as many as a block holds at a time."""
    return (slice(first, min(count, first + BLOCK_ROWS)) for first in range(0, count, BLOCK_ROWS))


@dataclass(frozen=True, repr=False)
class Graph:
    """The nearest rows of each query, by cosine; equal scores are ordered by row number.

    Attributes:
        scores: (n, k) cosines, descending; -1 where there are fewer than k rows, and for a row of zeros.
        rows: (n, k) row numbers; -1 where scores are -1 for these reasons.
        ids: ids of the rows that were searched.
        query_ids: ids of the queries.
        is_own: whether the queries are the rows themselves; none is its own neighbour then.
    """

    scores: NDArray[np.float32]
    rows: NDArray[np.int64]
    ids: Sequence[str]
    query_ids: Sequence[str]
    is_own: bool

    @property
    def distances(self) -> NDArray[np.float32]:
        """(n, k) 1 - cosine, not below 0."""
        distances: NDArray[np.float32] = np.maximum(1 - self.scores, np.float32(0))
        return distances

    def __repr__(self) -> str:
        return f"<Graph: the {self.rows.shape[1]:,} nearest of {len(self.ids):,} rows for {len(self.rows):,} queries>"

    def to_scipy(self) -> scipy.sparse.csr_matrix:
        """(queries, rows) distances, of each query in ascending order: cleanlab's `knn_graph`, scanpy's distances."""
        from scipy.sparse import csr_matrix

        found = self.rows >= 0
        starts = np.concatenate([[0], np.cumsum(found.sum(1))])
        return csr_matrix((self.distances[found], self.rows[found], starts), shape=(len(self.rows), len(self.ids)))

    def with_itself(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Neighbours and distances (n, k + 1), every row first among its own: UMAP's `precomputed_knn`."""
        if not self.is_own:
            raise InvalidInputError(
                "with_itself needs the graph of the rows of one split; this graph was made for other queries"
            )
        count = len(self.rows)
        rows = np.concatenate([np.arange(count)[:, None], self.rows], axis=1)
        return rows, np.concatenate([np.zeros((count, 1), np.float32), self.distances], axis=1)

    def to_scanpy(self) -> _Transformer:
        """For `scanpy.pp.neighbors(adata, transformer=graph.to_scanpy())`."""
        if not self.is_own or (self.rows < 0).any():
            raise InvalidInputError("scanpy needs all neighbours of every row; leave out rows of zeros, or lower k")
        return _Transformer(self)

    def save(self, path: str | Path) -> None:
        """.npz: as scipy.sparse.load_npz reads it. .parquet: a line for every edge, with ids."""
        path = parse_output(path)
        out = io.BytesIO()
        if path.suffix == ".npz":
            from scipy.sparse import save_npz

            save_npz(out, self.to_scipy(), compressed=False)
        else:
            import pyarrow.parquet

            pyarrow.parquet.write_table(self._edges(), out)
        write_atomic(path, out.getvalue())

    def _edges(self) -> Any:
        import pyarrow

        queries, ranks = np.nonzero(self.rows >= 0)
        rows = self.rows[queries, ranks]

        def named(numbers: NDArray[np.int64], ids: Sequence[str]) -> Any:
            return pyarrow.DictionaryArray.from_arrays(pyarrow.array(numbers.astype(np.int32)), arrow_texts(ids))

        return pyarrow.table(
            {
                "row": queries, "rank": (ranks + 1).astype(np.int32), "neighbour": rows,
                "score": self.scores[queries, ranks], "id": named(queries, self.query_ids),
                "neighbour_id": named(rows, self.ids),
            }
        )  # fmt: skip


class _Transformer:
    """What scanpy asks for neighbours: it gives those of a graph, whatever the values are."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def get_params(self, deep: bool = True) -> dict[str, int]:
        """n_neighbors: with the row itself, as scanpy counts."""
        return {"n_neighbors": self._graph.rows.shape[1] + 1}

    def fit_transform(self, values: Any) -> scipy.sparse.csr_matrix:
        if len(self._graph.rows) != values.shape[0]:
            raise InvalidInputError(f"the graph is of {len(self._graph.rows):,} rows, got {values.shape[0]:,}")
        return self._graph.to_scipy()


def knn(
    split: Split | AnyPlace,
    k: int = 15,
    queries: Split | AnyPlace | NDArray[np.floating] | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Find the k nearest rows by cosine of every row of a split, or of given queries, exactly.

    Args:
        split: where neighbours are searched, a split or a path such as "a.zarr/train".
        k: how many neighbours of each.
        queries: another split, or vectors (n, dim); by default the rows themselves, none of which is its own
            neighbour.
        out: a .npz or .parquet file to write the graph to. Finished blocks are kept beside it meanwhile, in OUT.parts,
            so that an interrupted search goes on with the same call.
        progress: is called with the number of queries that were answered.

    Returns:
        A graph with `scores` and `rows` (n, k); `to_scipy` makes a sparse matrix of it, `save` a file.

    Raises:
        InvalidInputError: k is larger than the number of possible neighbours.

    Examples:
        >>> actstore.knn(train, k=3).rows.shape
        (40, 3)
    """
    target = open_representation(split)
    vectors = None if queries is None else _parse_queries(queries, target)
    most = len(target) - (vectors is None)
    if not 1 <= k <= most:
        raise InvalidInputError(f"k must be from 1 to the {most:,} rows that can be neighbours, got {k}")
    if out is None:
        with TemporaryDirectory() as folder:
            return _search_graph(target, k, vectors, Path(folder), progress)
    path = parse_output(out)
    blocks = path.with_name(path.name + ".parts")
    graph = _search_graph(target, k, vectors, blocks, progress)
    graph.save(path)
    remove_blocks(blocks)
    return graph


def parse_output(path: str | Path) -> Path:
    if Path(path).suffix not in ENDINGS:
        raise InvalidInputError(f"a graph is written as {' or '.join(ENDINGS)}, got {path}")
    return Path(path)


def _search_graph(
    target: Split, k: int, queries: Split | NDArray[np.floating] | None, folder: Path, progress: Progress | None
) -> Graph:
    is_zero: NDArray[np.bool_] = RowTable(target).lengths().numpy().reshape(-1) == 0
    found = find_neighbours([target], is_zero, k, folder, _key(target, k, queries), progress, queries)
    ids = target.ids if queries is None else getattr(queries, "ids", None) or [str(row) for row in range(len(queries))]
    return Graph(found.scores, found.places, target.ids, ids, queries is None)


def _parse_queries(queries: Any, target: Split) -> Split | NDArray[np.floating]:
    if isinstance(queries, np.ndarray):
        return parse_vectors(queries, target.dim).numpy()
    other = open_representation(queries)
    if other.dim != target.dim:
        raise InvalidInputError(f"queries must have the {target.dim} features of {target.path}, got {other.dim}")
    return other


def _key(target: Split, k: int, queries: Split | NDArray[np.floating] | None) -> str:
    """Names the rows, the queries and k."""
    if queries is None or isinstance(queries, Split):
        named = None if queries is None else queries.content
    else:
        named = hashlib.sha256(np.ascontiguousarray(queries).data).hexdigest()
    text = json.dumps([_VERSION, target.content, named, k])
    return hashlib.sha256(text.encode()).hexdigest()

"""The exact k-nearest-neighbour graph of a split, or the nearest rows of other vectors, as other tools read them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.analysis.adapters import arrow_texts
from actstore.analysis.alignment import open_representation
from actstore.analysis.neighbours import Progress, find_across, find_neighbours, is_block
from actstore.errors import InvalidInputError
from actstore.search import RowTable
from actstore.search.table import parse_vectors
from actstore.split import Split
from actstore.storage.atomic_file import write_atomic
from actstore.storage.place import AnyPlace

if TYPE_CHECKING:
    import scipy.sparse

ENDINGS = (".npz", ".parquet")
_VERSION = 1  # of the blocks that are kept of an unfinished graph


@dataclass(frozen=True)
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
            return _search(target, k, vectors, Path(folder), progress)
    path = parse_output(out)
    blocks = path.with_name(path.name + ".parts")
    graph = _search(target, k, vectors, blocks, progress)
    graph.save(path)
    _remove_blocks(blocks)
    return graph


def parse_output(path: str | Path) -> Path:
    if Path(path).suffix not in ENDINGS:
        raise InvalidInputError(f"a graph is written as {' or '.join(ENDINGS)}, got {path}")
    return Path(path)


def _remove_blocks(folder: Path) -> None:
    """And the folder, where it holds nothing of others."""
    for file in folder.glob("*.safetensors"):
        if is_block(file):
            file.unlink()
    with suppress(OSError):
        folder.rmdir()


def _search(
    target: Split, k: int, queries: Split | NDArray[np.floating] | None, folder: Path, progress: Progress | None
) -> Graph:
    key = _key(target, k, queries)
    is_zero: NDArray[np.bool_] = RowTable(target).lengths().numpy().reshape(-1) == 0
    if queries is None:
        found = find_neighbours([target], is_zero, k, folder, key, progress)
        return Graph(found.scores, found.places, target.ids, target.ids, True)
    found = find_across(target, queries, is_zero, k, folder, key, progress)
    ids = queries.ids if isinstance(queries, Split) else [str(number) for number in range(len(queries))]
    return Graph(found.scores, found.places, target.ids, ids, False)


def _parse_queries(queries: Any, target: Split) -> Split | NDArray[np.floating]:
    if isinstance(queries, np.ndarray):
        return parse_vectors(queries, target.dim).numpy()
    other = open_representation(queries)
    if other.dim != target.dim:
        raise InvalidInputError(f"queries must have the {target.dim} features of {target.path}, got {other.dim}")
    return other


def _key(target: Split, k: int, queries: Split | NDArray[np.floating] | None) -> str:
    """Names the rows, the queries and k."""
    named = None if queries is None else queries.content if isinstance(queries, Split) else _digest(queries)
    text = json.dumps([_VERSION, target.content, named, k])
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(values: NDArray[np.floating]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()

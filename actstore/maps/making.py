"""`actstore.map`: rows of a split laid out on a plane, as a page or a Parquet file.

Positions are principal components, or UMAP that starts from them on the graph of exact neighbours.
"""

from __future__ import annotations

import io
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.analysis.alignment import open_representation
from actstore.analysis.neighbours import Graph, knn
from actstore.analysis.similarity import unit
from actstore.errors import InvalidInputError
from actstore.maps.packing import DEFAULT_THUMBNAILS, make_page
from actstore.progress import Progress
from actstore.reading.rows import parse_rows
from actstore.split import Split
from actstore.storage.atomic_file import as_utf8, write_atomic
from actstore.storage.place import AnyPlace
from actstore.store import create
from actstore.streams.sampling import Stream, generator

Method = Literal["auto", "umap", "pca"]
METHODS: tuple[Method, ...] = get_args(Method)
MOST_POINTS, DEFAULT_POINTS = 500_000, 100_000
LEAST_FOR_UMAP = 5  # rows; fewer say nothing of neighbourhoods
_FITTED = 10_000  # rows that principal components are computed of
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Map:
    """Rows of a split as points on a plane.

    Attributes:
        split: where the rows lie.
        rows: (n,) their numbers, ascending.
        positions: (n, 2) where they lie on the plane.
        neighbours: (n, k) the nearest rows of each among those of the map, by their place in `rows`; -1 where there is
            none.
        distances: (n, k) 1 - cosine of these neighbours, 2 where there is none.
        method: "umap" or "pca".
        seed: of the sample and the layout.
        notes: what a reader might not expect, in sentences.
    """

    split: Split
    rows: NDArray[np.int64]
    positions: NDArray[np.float32]
    neighbours: NDArray[np.int64]
    distances: NDArray[np.float32]
    method: str
    seed: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def to_html(
        self,
        color: str | None = None,
        thumbnails: int = DEFAULT_THUMBNAILS,
        images: str | Path | None = None,
        progress: Progress | None = None,
    ) -> str:
        """One page that needs nothing else. color: the column that points are coloured by at first; by default their
        class. thumbnails: images that are put into the page, at most; images: the folder where ids are paths, for rows
        that were imported. progress: gets thumbnails as they are made."""
        return make_page(self, color, thumbnails, images, progress)[0]

    def save(self, path: str | Path, **options: Any) -> list[str]:
        """The page in a file; options: of `to_html`. Returns notes, those on thumbnails and columns included."""
        if Path(path).suffix != ".html":
            raise InvalidInputError(f"a map is written as .html, got {path}; `to_parquet` writes .parquet")
        page, notes = make_page(self, **options)
        write_atomic(Path(path), as_utf8(page))
        return notes

    def to_parquet(self, path: str | Path) -> None:
        """x, y, row, id, class, label, columns and neighbours of every point, as Embedding Atlas reads them
        (`--x x --y y --neighbors neighbors`)."""
        import pyarrow
        import pyarrow.parquet

        if Path(path).suffix != ".parquet":
            raise InvalidInputError(f"a table of a map is written as .parquet, got {path}")
        facts = self.split.to_arrow(self.rows)
        own = {"x": self.positions[:, 0], "y": self.positions[:, 1], "row": self.rows}
        columns = {**own, **{name: facts[name] for name in facts.column_names}, "neighbors": self._nearest()}
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
        write_atomic(Path(path), buffer.getvalue())

    def _nearest(self) -> Any:
        """Of each point a struct of `ids`, which are places in the table, and `distances`."""
        import pyarrow

        found = self.neighbours >= 0
        starts = pyarrow.array(np.concatenate([[0], np.cumsum(found.sum(1))]).astype(np.int32))
        lists = [pyarrow.ListArray.from_arrays(starts, pyarrow.array(values[found])) for values in
                 (self.neighbours, self.distances)]  # fmt: skip
        return pyarrow.StructArray.from_arrays(lists, names=["ids", "distances"])

    def _repr_html_(self) -> str:
        page = escape(self.to_html(thumbnails=min(DEFAULT_THUMBNAILS, 1000)))
        return f'<iframe srcdoc="{page}" title="Map" style="width:100%;height:640px;border:0"></iframe>'

    def __repr__(self) -> str:
        notes = "".join(f"\nnote: {note}" for note in self.notes)
        return f"<Map of {len(self):,} rows of {self.split.path} by {self.method}>{notes}"


def map(  # noqa: A001
    split: Split | AnyPlace,
    points: int = DEFAULT_POINTS,
    *,
    rows: ArrayLike | None = None,
    method: str = "auto",
    k: int = 15,
    seed: int = 0,
    progress: Progress | None = None,
) -> Map:
    """Lay rows of a split out on a plane, so that similar rows lie near each other.

    The same seed gives the same map.

    Args:
        split: a split, or a path such as "a.zarr/train".
        points: how many rows are shown at most; of more a sample is drawn, and the map says so.
        rows: row numbers (n,), by default all.
        method: "umap", "pca", or "auto", which is umap where umap-learn is installed.
        k: neighbours of each row, exact by cosine, among the rows of the map.
        seed: of the sample and the layout.
        progress: is called with the number of rows whose neighbours are found.

    Returns:
        A map; `save` writes it as an HTML page, `to_parquet` as a table.

    Raises:
        InvalidInputError: no row was chosen, or the number of points or neighbours is out of range.

    Examples:
        >>> actstore.map(train, method="pca").positions.shape
        (40, 2)
    """
    target = open_representation(split)
    if not 1 <= points <= MOST_POINTS:
        raise InvalidInputError(f"points must be from 1 to {MOST_POINTS:,}, got {points}")
    if k < 1:
        raise InvalidInputError(f"k must be 1 or more, got {k}")
    among = np.arange(len(target)) if rows is None else np.unique(parse_rows(rows, len(target)))
    if not len(among):
        raise InvalidInputError(f"{target.path} has no rows to be drawn" if rows is None else "no rows were chosen")
    chosen = _sample(among, points, seed)
    notes = [f"a sample of {len(chosen):,} of {len(among):,} rows"] if len(chosen) < len(among) else []
    used, said = choose_method(method, len(chosen))
    notes += [said] if said else []
    with ExitStack() as stack:
        drawn = target
        if len(chosen) < len(target):  # neighbours are sought among what is drawn
            drawn = _copied(target, chosen, Path(stack.enter_context(TemporaryDirectory())))
        nearest = min(k, len(chosen) - 2 if used == "umap" else len(chosen) - 1)
        graph = knn(drawn, nearest, progress=progress) if nearest > 0 else None
        positions = principal_plane(drawn)
        if used == "umap" and graph is not None:
            positions = _umap(positions, graph, seed)
    if graph is None:
        nobody = np.full((len(chosen), 0), -1)
        return Map(target, chosen, positions, nobody, nobody.astype(np.float32), used, seed, tuple(notes))
    alone = int((graph.rows < 0).all(1).sum())
    notes += [f"rows of zeros: {alone:,}; they have no neighbours, so where they lie says nothing"] if alone else []
    distances = np.where(graph.rows >= 0, graph.distances, np.float32(2))
    return Map(target, chosen, positions, graph.rows, distances, used, seed, tuple(notes))


def _sample(among: NDArray[np.int64], points: int, seed: int) -> NDArray[np.int64]:
    """Ascending."""
    if len(among) <= points:
        return among
    drawn = generator(seed, 0, Stream.MAPPED_ROWS).choice(len(among), points, replace=False, shuffle=False)
    return among[np.sort(drawn)]


def _copied(split: Split, rows: NDArray[np.int64], folder: Path) -> Split:
    """A split of these rows alone, for as long as the folder is there."""
    store = create(folder / "rows.zarr", classes=[], dim=split.dim, dtype=split.spec.dtype, rows=len(rows))
    with store.writer("rows") as writer:
        for start in range(0, len(rows), _BLOCK_ROWS):
            writer.append(split.take(rows[start : start + _BLOCK_ROWS]), None)
    return store["rows"]


def choose_method(wanted: str, count: int) -> tuple[str, str | None]:
    """umap or pca, and a sentence where it is not what one might expect."""
    if wanted not in METHODS:
        raise InvalidInputError(f"method must be one of {', '.join(METHODS)}, got {wanted!r}")
    if wanted == "pca":
        return "pca", None
    if count < LEAST_FOR_UMAP:
        return "pca", f"laid out by PCA: UMAP needs {LEAST_FOR_UMAP} rows, there are {count}"
    if find_spec("umap") is not None:
        return "umap", None
    how = "pip install 'actstore[map]'"
    if wanted == "umap":
        raise InvalidInputError(f"a layout by UMAP needs the library umap-learn: {how}")
    return "pca", f"laid out by PCA, as umap-learn is not installed: {how}"


def principal_plane(split: Split) -> NDArray[np.float32]:
    """(rows, 2): rows of length one on the first two principal components of some of them, evenly spaced."""
    some = np.unique(np.linspace(0, len(split) - 1, min(len(split), _FITTED)).astype(np.int64))
    units = unit(split.take(some, "f8"))
    mean = units.mean(0)
    centred = units - mean
    _, directions = np.linalg.eigh(centred.T @ centred)  # ascending
    axes = directions[:, :-3:-1]
    axes *= np.where(np.take_along_axis(axes, abs(axes).argmax(0)[None], 0) < 0, -1.0, 1.0)  # a sign of its own
    plane = np.zeros((len(split), 2), np.float32)
    done = 0
    for block in split.blocks(_BLOCK_ROWS, dtype="f8"):
        plane[done : done + len(block), : axes.shape[1]] = (unit(block) - mean) @ axes
        done += len(block)
    return plane


def _umap(plane: NDArray[np.float32], graph: Graph, seed: int) -> NDArray[np.float32]:
    """One thread, as only that gives the same positions every time. Rows without neighbours are put beside the others,
    as a point far away would leave little of the map to these."""
    random = generator(seed, 3, Stream.MAPPED_ROWS)
    spread = max(float(abs(plane).max()), 1e-6)
    begin = 10 * plane / spread + 1e-3 * random.standard_normal(plane.shape)  # copies of a row do not start as one
    if not (graph.rows >= 0).any():
        return begin.astype(np.float32)
    rows, distances = graph.with_itself()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an index for rows to come, which a map does not have
        from umap import UMAP

        layout = UMAP(n_neighbors=rows.shape[1], precomputed_knn=(rows, distances, None), n_jobs=1,
                      init=begin.astype(np.float32), random_state=seed).fit_transform(plane)  # fmt: skip
    alone = (graph.rows < 0).all(1) | ~np.isfinite(layout).all(1)
    low, high = layout[~alone].min(0), layout[~alone].max(0)
    layout[alone] = low + (high - low) * [0.02, -0.03] * random.random((int(alone.sum()), 2))
    return np.asarray(layout, np.float32)

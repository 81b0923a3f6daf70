"""Positions of rows on a plane: principal components, and UMAP that starts from them on the exact graph."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from actstore.analysis.graph import Graph
from actstore.errors import InvalidInputError
from actstore.split import Split
from actstore.streams.sampling import Stream, generator

Method = Literal["auto", "umap", "pca"]
METHODS: tuple[Method, ...] = get_args(Method)
LEAST_FOR_UMAP = 5  # rows; fewer say nothing of neighbourhoods
_FITTED = 10_000  # rows that principal components are computed of
_BLOCK_ROWS = 4096


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


def lay_out(split: Split, graph: Graph | None, seed: int) -> NDArray[np.float32]:
    """(rows, 2) positions; of principal components alone where no graph is given."""
    plane = principal_plane(split)
    return plane if graph is None else _umap(plane, graph, seed)


def principal_plane(split: Split) -> NDArray[np.float32]:
    """(rows, 2): rows of length one on the first two principal components of some of them, evenly spaced."""
    some = np.unique(np.linspace(0, len(split) - 1, min(len(split), _FITTED)).astype(np.int64))
    units = _units(split.take(some, "f8"))
    mean = units.mean(0)
    centred = units - mean
    _, directions = np.linalg.eigh(centred.T @ centred)  # ascending
    axes = directions[:, :-3:-1]
    axes *= np.where(np.take_along_axis(axes, abs(axes).argmax(0)[None], 0) < 0, -1.0, 1.0)  # a sign of its own
    plane = np.zeros((len(split), 2), np.float32)
    done = 0
    for block in split.blocks(_BLOCK_ROWS, dtype="f8"):
        plane[done : done + len(block), : axes.shape[1]] = (_units(block) - mean) @ axes
        done += len(block)
    return plane


def _units(rows: NDArray[Any]) -> NDArray[np.float64]:
    """A row of zeros stays one."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units: NDArray[np.float64] = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return units


def _umap(plane: NDArray[np.float32], graph: Graph, seed: int) -> NDArray[np.float32]:
    """One thread, as only that gives the same positions every time. Rows without neighbours stay where they begin."""
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
    return np.where(np.isfinite(layout), layout, begin).astype(np.float32)


def scaled(positions: NDArray[np.float32]) -> NDArray[np.uint16]:
    """(n, 2) in steps of 1/65,535 of the longer side of the map, which is centred; both sides have one scale."""
    low, high = positions.min(0), positions.max(0)
    side = float((high - low).max()) or 1.0
    steps: NDArray[np.uint16] = np.rint(((positions - (low + high) / 2) / side + 0.5) * 65_535).astype(np.uint16)
    return steps

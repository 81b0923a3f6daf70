"""One split, read: rows by number, by class, by query, block by block, or as other libraries' arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.errors import InvalidInputError, RowRangeError
from actstore.layout.class_index import ClassIndex
from actstore.layout.columns import Columns
from actstore.layout.metadata import ACTIVATIONS, explained, read_labels, read_sound_ids
from actstore.layout.texts import RowNumbers
from actstore.reading.reader import open_rows
from actstore.reading.rows import CheckedRows, Rows, parse_rows
from actstore.spec import SplitSpec, StoreSpec
from actstore.storage.place import Place

if TYPE_CHECKING:
    import anndata
    import dask.array
    import datasets
    import pandas
    import polars
    import pyarrow
    import rsatoolbox
    import torch
    import xarray
    from numpy.typing import DTypeLike

    from actstore.compute.cluster import Cluster
    from actstore.reading.conversion import FloatRows
    from actstore.statistics.class_statistics import ClassStatistics
    from actstore.streams.class_batches import RowDataset


class Split:
    """The committed rows of a split. Cheap to make, pickles to its path, safe to share between threads
    and with forked or spawned workers."""

    def __init__(self, store: Place, name: str, spec: StoreSpec, split: SplitSpec, checked: bool = False) -> None:
        self.store_path = store
        self.name = name
        self.spec = spec
        self.committed = split
        self.checked = checked

    def __len__(self) -> int:
        return self.committed.rows

    @property
    def dim(self) -> int:
        return self.spec.dim

    @property
    def shape(self) -> tuple[int, int]:
        return (len(self), self.dim)

    @property
    def ndim(self) -> int:
        return 2

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.spec.dtype)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.spec.classes

    @property
    def content(self) -> str:
        """A hash that names these rows, labels, ids and columns."""
        return self.committed.content

    @property
    def path(self) -> Place:
        return self.store_path / self.name

    @cached_property
    def rows(self) -> Rows:
        """The reader underneath: mapped chunks, or Zarr."""
        rows = open_rows(self.path / ACTIVATIONS, self.spec, len(self), self.committed)
        return CheckedRows(rows, self.spec.chunk_rows) if self.checked else rows

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """(rows,) class of each row, -1 where there is none."""
        with self._explained():
            labels = read_labels(self.path, self.committed)
        labels.flags.writeable = False
        return labels

    @cached_property
    def ids(self) -> Sequence[str]:
        """The id of each row: its image's path, or its number where none was given."""
        if not self.committed.has_ids:
            return RowNumbers(len(self))
        with self._explained():
            return read_sound_ids(self.path, self.committed)

    @cached_property
    def columns(self) -> Columns:
        """`split.columns["area"]`: (rows,) values of a column; `list(split.columns)` names them."""
        return Columns(self.path, self.committed, self._explained)

    def _explained(self) -> AbstractContextManager[None]:
        """Around a read: a split that was replaced meanwhile is not called damaged."""
        return explained(self.path, self.spec, self.committed)

    @cached_property
    def class_index(self) -> ClassIndex:
        return ClassIndex(self.classes, self.labels)

    def take(self, rows: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Rows by number, in any order, duplicates fine -> (n, dim).

        In the type that they are stored in (`split.dtype`: float16 unless the store is of f4), or in float32 with
        dtype="f4", float64 with "f8". Sums and products of float16 overflow above 65,504 without an error.
        """
        values = self.rows.take(parse_rows(rows, len(self)))
        return values if dtype is None else self._typed(values, dtype)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """`split[7]` (dim,), `split[10:20]` (10, dim), `split[[3, -1]]` (2, dim), `split[...]` all; as numpy does.

        A second index picks features. Values have the type that they are stored in; `split.f4[…]` gives float32.
        """
        if key is Ellipsis or isinstance(key, tuple):
            rows, features = _two_keys(key)
            values = self[rows]
            if _is_int(rows):
                return values[features]  # type: ignore[no-any-return]
            both = not any(isinstance(axis, slice) or _is_int(axis) for axis in (rows, features))
            return values[np.arange(len(values)) if both else slice(None), features]  # two lists go in pairs
        if _is_int(key):
            row: NDArray[Any] = self.take([key])[0]
            return row
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self.rows.read(start, max(start, stop))
            return self.take(np.arange(start, stop, step))
        return self.take(key)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """`numpy.asarray(split)`: all rows, a view of the mapped ones where that is possible."""
        values = self.rows.read(0, len(self))
        return np.array(values, dtype) if copy else np.asarray(values, dtype)

    @property
    def f4(self) -> FloatRows:
        """The same rows in float32, for linear algebra: `split.f4[:100]`, `.take(rows)`, `numpy.asarray(split.f4)`."""
        from actstore.reading.conversion import FloatRows

        return FloatRows(self)

    def of_class(self, name: str | int, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """All rows of a class -> (n, dim), in the type that they are stored in or in `dtype`, as `take`."""
        label = self.class_index.position(name)
        span = self.class_index.span(label)
        if span is not None:
            return self._typed(self.rows.read(span.start, span.stop), dtype)
        return self.take(self.class_index.rows(label), dtype)

    def _typed(self, values: NDArray[Any], dtype: DTypeLike | None) -> NDArray[Any]:
        if dtype is None:
            return values
        from actstore.reading.conversion import widen

        return widen(values, dtype)

    def blocks(self, rows_per_block: int | None = None, dtype: DTypeLike | None = None) -> Iterator[NDArray[Any]]:
        """All rows in order, (rows_per_block, dim) at a time, with bounded memory.

        Blocks default to whole chunks, which is fastest where chunks are compressed. Their type is the one that rows
        are stored in, or `dtype`, as for `take`.
        """
        step = rows_per_block or self.spec.chunk_rows
        if step < 1:
            raise InvalidInputError(f"rows_per_block must be positive, got {rows_per_block}")
        for start in range(0, len(self), step):
            stop = min(start + step, len(self))
            yield self._typed(self.rows.read(start, stop), dtype)
            self.rows.release(start, stop)

    def query(
        self,
        classes: Sequence[str | int] | None = None,
        path_glob: str | None = None,
        rows: Any = None,
        where: str | Sequence[str] | None = None,
    ) -> NDArray[np.int64]:
        """Row numbers that satisfy every filter given, ascending; see `reading/query.py`.

        where: conditions on columns such as "area > 0.5 and source in (web, print)", several are and-ed.
        """
        from actstore.reading.query import find_rows

        return find_rows(self, classes=classes, path_glob=path_glob, rows=rows, where=where)

    def search(
        self,
        vectors: Any,
        k: int = 10,
        *,
        classes: Sequence[str | int] | None = None,
        path_glob: str | None = None,
        rows: Any = None,
        where: str | Sequence[str] | None = None,
        exact: bool = True,
        method: str = "auto",
        metric: str = "cosine",
        device: str = "cpu",
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The k nearest rows of each of vectors (n, dim) -> scores (n, k) descending, rows (n, k).

        Equal scores are ordered by row. classes, path_glob, rows and where limit the rows as in `query`.
        exact=False, or a method such as "ivf", asks the index that `actstore index` built; see search/__init__.py for
        the methods.
        """
        from actstore.search import search

        filters = (classes, path_glob, rows, where)
        among = None if all(limit is None for limit in filters) else self.query(*filters)
        if not exact and method == "auto":
            method = "approximate"
        return search(self, vectors, k, rows=among, method=method, metric=metric, device=device)

    def statistics(self, progress: Any = None, cluster: Cluster | None = None) -> ClassStatistics:
        """Count, mean and variance of every class, cached in the store under the hash of the content.

        progress: is told how many rows each step has read. cluster: its workers read the chunks.
        """
        from actstore.statistics.class_statistics import class_statistics

        return class_statistics(self, progress, cluster)

    def means(self) -> NDArray[np.float32]:
        """(classes, dim) mean activation of every class in float32, summed in float64; NaN for a class without rows."""
        from actstore.statistics.class_statistics import class_means

        return class_means(self)

    def to_dask(self) -> dask.array.Array:
        """A lazy (rows, dim) dask array, one block per chunk."""
        from actstore.reading.conversion import to_dask

        return to_dask(self)

    def to_torch(self, rows: ArrayLike | None = None, dtype: Any = None, device: str = "cpu") -> torch.Tensor:
        """Rows (all by default) as a tensor of its own memory, (n, dim)."""
        from actstore.reading.conversion import to_torch

        return to_torch(self, rows, dtype, device)

    def to_xarray(self) -> xarray.Dataset:
        """A lazy xarray Dataset with columns as variables, class names and ids as coordinates."""
        from actstore.reading.conversion import to_xarray

        return to_xarray(self)

    def to_arrow(
        self, rows: ArrayLike | None = None, features: bool = False, dtype: DTypeLike | None = None
    ) -> pyarrow.Table:
        """Ids, classes, labels and columns of rows, and with features their values, as lists; nothing that is stored
        alike is copied. DuckDB reads it by its Python name (with dtype="f4": it knows no fp16)."""
        from actstore.analysis.adapters import to_arrow

        return to_arrow(self, rows, features, dtype)

    def to_pandas(
        self, rows: ArrayLike | None = None, features: bool = False, dtype: DTypeLike | None = None
    ) -> pandas.DataFrame:
        """As `to_arrow`; with features, each row's are an array (dim,)."""
        from actstore.analysis.adapters import to_pandas

        return to_pandas(self, rows, features, dtype)

    def to_polars(
        self, rows: ArrayLike | None = None, features: bool = False, dtype: DTypeLike | None = None
    ) -> polars.DataFrame:
        """As `to_arrow`."""
        from actstore.analysis.adapters import to_polars

        return to_polars(self, rows, features, dtype)

    def to_huggingface(
        self, rows: ArrayLike | None = None, features: bool = True, dtype: DTypeLike | None = None
    ) -> datasets.Dataset:
        """A Dataset of HuggingFace over the table of `to_arrow`."""
        from actstore.analysis.adapters import to_huggingface

        return to_huggingface(self, rows, features, dtype)

    def to_rsatoolbox(self, rows: ArrayLike | None = None) -> rsatoolbox.data.Dataset:
        """rsatoolbox's Dataset, with ids, classes and columns as descriptors."""
        from actstore.analysis.adapters import to_rsatoolbox

        return to_rsatoolbox(self, rows)

    def to_assembly(self, rows: ArrayLike | None = None) -> xarray.DataArray:
        """(presentation, neuroid) with the coordinates that Brain-Score names, as plain xarray."""
        from actstore.analysis.adapters import to_assembly

        return to_assembly(self, rows)

    def to_anndata(self, rows: ArrayLike | None = None) -> anndata.AnnData:
        """AnnData, as scanpy reads it."""
        from actstore.analysis.adapters import to_anndata

        return to_anndata(self, rows)

    def to_sae(self, batch_size: int = 4096, seed: int = 0, device: str = "cpu") -> Iterator[torch.Tensor]:
        """Shuffled batches (batch_size, dim) of float32 without end, as SAELens's trainers take them."""
        from actstore.analysis.adapters import to_sae

        return to_sae(self, batch_size, seed, device)

    def to_dataset(self, batch_size: int, seed: int | None = None, **options: Any) -> RowDataset:
        """A torch IterableDataset of (activations, labels) batches; shuffled when given a seed."""
        from actstore.streams.class_batches import RowDataset

        return RowDataset(self, batch_size, seed=seed, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Split, (self.store_path, self.name, self.spec, self.committed, self.checked)

    def __repr__(self) -> str:
        from actstore.description import brief_line

        return f"<Split {brief_line(self.store_path, self.spec, {self.name: self.committed})}>"

    def _repr_html_(self) -> str:
        from actstore.description import brief_table

        return brief_table(self.store_path, self.spec, {self.name: self.committed})


def _two_keys(key: Any) -> tuple[Any, Any]:
    """What a tuple or an ellipsis asks of the two axes."""
    parts = list(key) if isinstance(key, tuple) else [key]
    place = next((place for place, part in enumerate(parts) if part is Ellipsis), None)
    if place is not None:
        parts[place : place + 1] = [slice(None)] * (3 - len(parts))
    parts += [slice(None)] * (2 - len(parts))
    if len(parts) != 2 or any(part is None or part is Ellipsis for part in parts):
        raise RowRangeError(f"a split has two axes, rows and features, which {key!r} does not index")
    return parts[0], parts[1]


def _is_int(key: Any) -> bool:
    return isinstance(key, int | np.integer) and not isinstance(key, bool)

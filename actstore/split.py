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
from actstore.layout.columns import Columns, RowNumbers, read_labels, read_sound_ids
from actstore.layout.metadata import ACTIVATIONS, explained
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
    """The committed rows of one split: an array (rows, dim) with labels, ids and columns.

    `store["train"]` makes one. A split costs little to make and to pickle, and can be shared between threads and with
    forked or spawned workers. Indexing works as in numpy: `split[7]` (dim,), `split[10:20]` (10, dim),
    `split[[3, -1]]` (2, dim), `split[:, :4]` (rows, 4).

    Attributes:
        store_path: where the store lies.
        name: name of the split, such as "train".
        spec: what the metadata says about the store, with the `dim` and chunks of this split.
        committed: what the metadata says about the split itself.
        checked: whether every chunk is compared with its checksum before rows are first taken from it.

    Examples:
        >>> train.shape, train.dtype
        ((40, 8), dtype('float16'))
        >>> train[:3].shape
        (3, 8)
        >>> train.ids[0], train.classes[train.labels[0]]
        ('ant/0.jpg', 'ant')
    """

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
        """The number of values in a row."""
        return self.spec.dim

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, dim), as of a numpy array."""
        return (len(self), self.dim)

    @property
    def ndim(self) -> int:
        """2, as of a numpy array."""
        return 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type that rows are stored in: float16, or float32 in a store of type "f4"."""
        return np.dtype(self.spec.dtype)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; label i stands for `classes[i]`."""
        return self.spec.classes

    @property
    def content(self) -> str:
        """A hash that names these rows, labels, ids and columns."""
        return self.committed.content

    @property
    def path(self) -> Place:
        """Where the split lies."""
        return self.store_path / self.name

    @cached_property
    def rows(self) -> Rows:
        """The reader that `take` and the like use, over mapped chunks or over Zarr."""
        rows = open_rows(self.path / ACTIVATIONS, self.spec, len(self), self.committed)
        return CheckedRows(rows, self.spec.chunk_rows) if self.checked else rows

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """(rows,) the label of each row, and -1 for a row without one."""
        with self._explained():
            labels = read_labels(self.path, self.committed)
        labels.flags.writeable = False
        return labels

    @cached_property
    def ids(self) -> Sequence[str]:
        """The id of each row: the path of its image, or the number of the row where no ids were given."""
        if not self.committed.has_ids:
            return RowNumbers(len(self))
        with self._explained():
            return read_sound_ids(self.path, self.committed)

    @cached_property
    def columns(self) -> Columns:
        """The columns by name: `split.columns["width"]` is (rows,), `list(split.columns)` names them."""
        return Columns(self.path, self.committed, self._explained)

    def _explained(self) -> AbstractContextManager[None]:
        """Around a read: a split that was replaced meanwhile is not called damaged."""
        return explained(self.path, self.spec, self.committed)

    @cached_property
    def class_index(self) -> ClassIndex:
        """The rows of every class, for whoever plans which rows to read."""
        return ClassIndex(self.classes, self.labels)

    def take(self, rows: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Copy rows by number.

        Rows come in the type that they are stored in. Sums and products of float16 overflow above 65,504 without an
        error; ask for "f4" before you calculate.

        Args:
            rows: row numbers (n,), in any order and repeated at will, or a mask (rows,).
            dtype: "f4" or "f8" for rows in float32 or float64.

        Returns:
            (n, dim) rows, in the order asked for.

        Raises:
            RowRangeError: a number is outside of the split.
            DamagedError: a chunk is missing or truncated; in a checked store also if it does not have its checksum.

        Examples:
            >>> train.take([17, 3, 3]).shape
            (3, 8)
            >>> train.take([0], dtype="f4").dtype
            dtype('float32')
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
            return values[
                np.arange(len(values)) if both else slice(None), features
            ]  # numpy pairs two lists, element by element
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
        """The same rows in float32, for linear algebra: `split.f4[:100]`, `split.f4 @ weights`."""
        from actstore.reading.conversion import FloatRows

        return FloatRows(self)

    def of_class(self, name: str | int, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Read all rows of a class.

        Args:
            name: name of the class, or its label.
            dtype: "f4" or "f8" for rows in float32 or float64, as in `take`.

        Returns:
            (n, dim) rows.

        Raises:
            InvalidInputError: there is no such class; the message names the closest one.

        Examples:
            >>> train.of_class("bee").shape
            (10, 8)
        """
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
        """Read all rows in order, one block after the other, in bounded memory.

        Args:
            rows_per_block: by default the rows of a chunk, which is fastest where chunks are compressed.
            dtype: "f4" or "f8" for rows in float32 or float64, as in `take`.

        Yields:
            (rows_per_block, dim) rows; the last block may be shorter.

        Examples:
            >>> [len(block) for block in train.blocks(16)]
            [16, 16, 8]
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
        """Find the rows that satisfy every filter that is given.

        Args:
            classes: names or labels.
            path_glob: a shell pattern for ids, such as "bee/*.jpg".
            rows: a slice, row numbers, a mask (rows,), a text such as "1000:2000", or the path of a file of row
                numbers.
            where: a condition such as "width > 0.5 and class in (ant, bee)", or several that must all hold. It may
                name columns, and class, label, id and row.

        Returns:
            (n,) row numbers, ascending.

        Raises:
            InvalidInputError: a filter cannot be understood, or names a class or a column that there is not.

        Examples:
            >>> train.query(classes=["bee"], rows=slice(0, 15))
            array([10, 11, 12, 13, 14])
            >>> train.query(where="class = dog and width < 3")
            array([30, 31, 32])
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
        """Find the k nearest rows of each vector.

        Every exact method gives the same rows and scores; equal scores are ordered by row number.

        Args:
            vectors: (n, dim), or (dim,) for a single one.
            k: how many rows to find for each vector.
            classes: limits the search to rows of these classes, as the next three do to theirs; see `query`.
            path_glob: a shell pattern for ids.
            rows: row numbers, a slice, a mask or a file.
            where: conditions on columns.
            exact: False asks the approximate index that `actstore index` built.
            method: "auto" chooses by what is built; "exact", "bounded", "faiss" or the kind of an index names one.
            metric: "cosine", or "inner" for inner products.
            device: "cpu", "cuda", "cuda:1" or "auto".

        Returns:
            Scores (n, k), descending, and row numbers (n, k).

        Raises:
            InvalidInputError: no row satisfies the filters, or the method does not exist or has no index yet.

        Examples:
            >>> scores, rows = train.search(train[[12]], k=3)
            >>> rows[0, 0]
            np.int64(12)
        """
        from actstore.search import search

        filters = (classes, path_glob, rows, where)
        among = None if all(limit is None for limit in filters) else self.query(*filters)
        if not exact and method == "auto":
            method = "approximate"
        return search(self, vectors, k, rows=among, method=method, metric=metric, device=device)

    def statistics(self, progress: Any = None, cluster: Cluster | None = None) -> ClassStatistics:
        """Count the rows of every class and compute their mean and variance.

        The result is kept in the store, under the hash of its content. After an append only the new rows are read.

        Args:
            progress: is called with the number of rows that each step has read.
            cluster: the workers of this cluster read the chunks.

        Returns:
            `count` (classes,), `mean` and `variance` (classes, dim) in float64; NaN for a class without rows.

        Examples:
            >>> train.statistics().count
            array([10, 10, 10, 10])
        """
        from actstore.statistics.class_statistics import class_statistics

        return class_statistics(self, progress, cluster)

    def means(self) -> NDArray[np.float32]:
        """Compute the mean activation of every class, or read it where that was done before.

        Returns:
            (classes, dim) in float32, summed in float64; NaN for a class without rows.

        Examples:
            >>> train.means().shape
            (4, 8)
        """
        from actstore.statistics.class_statistics import class_means

        return class_means(self)

    def to_dask(self) -> dask.array.Array:
        """Make a lazy dask array of all rows.

        Returns:
            (rows, dim), with one block for each chunk.

        Examples:
            >>> train.to_dask().mean(axis=0).compute().shape
            (8,)
        """
        from actstore.reading.conversion import to_dask

        return to_dask(self)

    def to_torch(self, rows: ArrayLike | None = None, dtype: Any = None, device: str = "cpu") -> torch.Tensor:
        """Copy rows into a tensor.

        Args:
            rows: row numbers (n,), by default all.
            dtype: a type of torch, by default the one that rows are stored in.
            device: where the tensor is made.

        Returns:
            (n, dim), in memory of its own.

        Examples:
            >>> train.to_torch([3, 5]).shape
            torch.Size([2, 8])
        """
        from actstore.reading.conversion import to_torch

        return to_torch(self, rows, dtype, device)

    def to_xarray(self) -> xarray.Dataset:
        """Make a lazy Dataset of xarray.

        Returns:
            A Dataset with `activations` (row, feature), `label` and the columns as variables, and with ids and class
            names as coordinates.

        Examples:
            >>> train.to_xarray().sizes["row"]
            40
        """
        from actstore.reading.conversion import to_xarray

        return to_xarray(self)

    def to_arrow(
        self, rows: ArrayLike | None = None, features: bool = False, dtype: DTypeLike | None = None
    ) -> pyarrow.Table:
        """Make an Arrow table of ids, classes, labels and columns, without copying what is stored in the same layout.

        DuckDB reads the table by its Python name; it knows no float16, so give it dtype="f4".

        Args:
            rows: row numbers (n,), by default all.
            features: also bring the values, as a column `activations` of lists.
            dtype: "f4" or "f8" for values in float32 or float64.

        Returns:
            A table of n rows.

        Examples:
            >>> train.to_arrow([0, 1]).column_names
            ['id', 'class', 'label', 'width']
        """
        from actstore.analysis.adapters import to_arrow

        return to_arrow(self, rows, features, dtype)

    def to_pandas(
        self, rows: ArrayLike | None = None, features: bool = False, dtype: DTypeLike | None = None
    ) -> pandas.DataFrame:
        """Make a data frame of ids, classes, labels and columns.

        Args:
            rows: row numbers (n,), by default all.
            features: also bring the values, as a column `activations` of arrays (dim,).
            dtype: "f4" or "f8" for values in float32 or float64.

        Returns:
            A data frame of n rows.

        Examples:
            >>> train.to_pandas()["class"].value_counts()["bee"]
            np.int64(10)
        """
        from actstore.analysis.adapters import to_pandas

        return to_pandas(self, rows, features, dtype)

    def to_polars(
        self, rows: ArrayLike | None = None, features: bool = False, dtype: DTypeLike | None = None
    ) -> polars.DataFrame:
        """Make a data frame of polars from the table of `to_arrow`.

        Args:
            rows: row numbers (n,), by default all.
            features: also bring the values, as a column `activations`.
            dtype: "f4" or "f8" for values in float32 or float64.
        """
        from actstore.analysis.adapters import to_polars

        return to_polars(self, rows, features, dtype)

    def to_huggingface(
        self, rows: ArrayLike | None = None, features: bool = True, dtype: DTypeLike | None = None
    ) -> datasets.Dataset:
        """Make a Dataset of HuggingFace from the table of `to_arrow`, over the same memory.

        Args:
            rows: row numbers (n,), by default all.
            features: False leaves the values out.
            dtype: "f4" or "f8" for values in float32 or float64.
        """
        from actstore.analysis.adapters import to_huggingface

        return to_huggingface(self, rows, features, dtype)

    def to_rsatoolbox(self, rows: ArrayLike | None = None) -> rsatoolbox.data.Dataset:
        """Make a Dataset of rsatoolbox, with ids, classes and columns as descriptors.

        Args:
            rows: row numbers (n,), by default all.

        Returns:
            A Dataset whose measurements are (n, dim) in float64.
        """
        from actstore.analysis.adapters import to_rsatoolbox

        return to_rsatoolbox(self, rows)

    def to_assembly(self, rows: ArrayLike | None = None) -> xarray.DataArray:
        """Make the array that Brain-Score expects, as plain xarray.

        Args:
            rows: row numbers (n,), by default all.

        Returns:
            (presentation, neuroid) in float32, with the coordinates that Brain-Score names.
        """
        from actstore.analysis.adapters import to_assembly

        return to_assembly(self, rows)

    def to_anndata(self, rows: ArrayLike | None = None) -> anndata.AnnData:
        """Make an AnnData object, as scanpy reads it.

        Args:
            rows: row numbers (n,), by default all.

        Returns:
            `X` (n, dim) in float32, with classes and columns in `obs`.
        """
        from actstore.analysis.adapters import to_anndata

        return to_anndata(self, rows)

    def to_sae(self, batch_size: int = 4096, seed: int = 0, device: str = "cpu") -> Iterator[torch.Tensor]:
        """Draw shuffled batches without end, as the trainers of SAELens take them.

        Args:
            batch_size: rows in a batch.
            seed: of the order, which is another one in every pass.
            device: where the batches go.

        Yields:
            (batch_size, dim) in float32.

        Examples:
            >>> next(train.to_sae(batch_size=16)).shape
            torch.Size([16, 8])
        """
        from actstore.analysis.adapters import to_sae

        return to_sae(self, batch_size, seed, device)

    def to_dataset(self, batch_size: int, seed: int | None = None, **options: Any) -> RowDataset:
        """Make an IterableDataset of torch; give it to a DataLoader with `batch_size=None`.

        Args:
            batch_size: rows in a batch.
            seed: shuffles the rows; without one they come in order.
            **options: `rank` and `world_size`, where several processes share the rows.

        Returns:
            A dataset of pairs, activations (batch_size, dim) and labels (batch_size,).

        Examples:
            >>> activations, labels = next(iter(train.to_dataset(batch_size=16, seed=0)))
            >>> activations.shape, labels.shape
            (torch.Size([16, 8]), torch.Size([16]))
        """
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
        raise RowRangeError(f"a split is indexed by rows and features, as in split[rows, features]; got {key!r}")
    return parts[0], parts[1]


def _is_int(key: Any) -> bool:
    return isinstance(key, int | np.integer) and not isinstance(key, bool)

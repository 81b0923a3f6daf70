"""One split, read: rows by number, class and query, their nearest ones, their means, and batches of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from actstore.errors import InvalidInputError
from actstore.reading.adapters import AdaptedRows
from actstore.reading.rows import parse_rows

if TYPE_CHECKING:
    import torch

    from actstore.compute.cluster import Cluster
    from actstore.statistics import ClassStatistics
    from actstore.streams.class_batches import RowDataset


class Split(AdaptedRows):
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
        from actstore.reading.query import column_of, glob_rows, matching_rows, parse_row_filter

        keep = np.ones(len(self), bool)
        if classes is not None:
            wanted = self.class_index.positions([classes] if isinstance(classes, str) else classes)
            keep &= np.isin(self.labels, wanted)
        numbers = np.arange(len(self))
        if path_glob is not None:
            keep &= np.isin(numbers, glob_rows(self.ids, path_glob))
        if rows is not None:
            keep &= np.isin(numbers, parse_row_filter(rows, len(self)))
        if where is not None and len(where):
            keep &= matching_rows(where, lambda name: column_of(self, name), len(self), self)
        return np.flatnonzero(keep)

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
        from actstore.statistics import class_statistics

        return class_statistics(self, progress, cluster)

    def means(self, dtype: DTypeLike = "f4") -> NDArray[Any]:
        """Compute the mean activation of every class, or read it where that was done before.

        Args:
            dtype: "f4" or "f8" for means in float32 or float64.

        Returns:
            (classes, dim), summed in float64; NaN for a class without rows.

        Examples:
            >>> train.means().shape
            (4, 8)
        """
        from actstore.statistics import class_means

        if np.dtype(dtype) not in (np.float32, np.float64):
            raise InvalidInputError(f"dtype of means must be 'f4' or 'f8', got {dtype!r}")
        return class_means(self, dtype)

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
        import torch

        from actstore.compute.tensors import borrow

        wanted = None if rows is None else parse_rows(rows, len(self))
        count = len(self) if wanted is None else len(wanted)
        out = torch.empty((count, self.dim), dtype=dtype or getattr(torch, self.dtype.name), device=device)
        if wanted is not None:
            for part, piece in self.rows.pieces(wanted):
                out[part].copy_(borrow(piece))
            return out
        for number, block in enumerate(self.blocks()):
            start = number * self.spec.chunk_rows
            out[start : start + len(block)].copy_(borrow(block))
        return out

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
        from actstore.streams.class_batches import endless_batches

        return endless_batches(self, batch_size, seed, device)

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

    def __repr__(self) -> str:
        from actstore.store import brief_line

        return f"<Split {brief_line(self.store_path, self.spec, {self.name: self.committed})}>"

    def _repr_html_(self) -> str:
        from actstore.store import brief_table

        return brief_table(self.store_path, self.spec, {self.name: self.committed})

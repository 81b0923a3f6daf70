"""What a split is when it is read: an array (rows, dim) with labels, ids and columns, and a view of it in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, DTypeLike, NDArray

from actstore.errors import InvalidInputError, RowRangeError
from actstore.layout.class_index import ClassIndex
from actstore.layout.columns import Columns, RowNumbers, Texts, facts_of, read_fact
from actstore.layout.metadata import ACTIVATIONS, explained
from actstore.reading.mapped_rows import Rows, open_rows
from actstore.reading.rows import parse_rows
from actstore.spec import SplitSpec, StoreSpec
from actstore.storage.place import Place


class SplitRows:
    """The committed rows of one split, by number, by class and block by block."""

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
        return open_rows(self.path / ACTIVATIONS, self.spec, len(self), self.committed, self.checked)

    @cached_property
    def labels(self) -> NDArray[np.int32]:
        """(rows,) the label of each row, and -1 for a row without one."""
        with self._explained():
            labels = np.asarray(read_fact(self.path, facts_of(self.committed)["labels"]), np.int32)
        labels.flags.writeable = False
        return labels

    @cached_property
    def ids(self) -> Sequence[str]:
        """The id of each row: the path of its image, or the number of the row where no ids were given."""
        if not self.committed.has_ids:
            return RowNumbers(len(self))
        with self._explained():
            return cast(Texts, read_fact(self.path, facts_of(self.committed)["ids"]))

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
        return self._typed(self.rows.take(parse_rows(rows, len(self))), dtype)

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
        return values if dtype is None else widen(values, dtype)

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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store_path, self.name, self.spec, self.committed, self.checked)


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


def widen(values: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Values in a floating-point type that holds all of them; themselves where they have it already."""
    try:
        wanted = np.dtype(dtype).newbyteorder("=")
    except TypeError as error:
        raise InvalidInputError(f"dtype must be a floating-point type such as 'f4', got {dtype!r}") from error
    if wanted == values.dtype:
        return values
    if wanted not in (np.float32, np.float64) or not np.can_cast(values.dtype, wanted):
        raise InvalidInputError(
            f"dtype must hold what is stored as {values.dtype.name}: itself, 'f4' or 'f8' where that is wider, got "
            f"{dtype!r}; round with numpy's astype"
        )
    from actstore.compute.tensors import convert_into  # brings torch: who takes rows does not wait for it

    out = np.empty(values.shape, wanted)
    convert_into(out, values)
    return out


class FloatRows(NDArrayOperatorsMixin):
    """The rows of a split in float32. numpy takes it for an array: `split.f4 @ weights`, `numpy.cov(split.f4.T)`.

    Sums and products of float16 rows overflow above 65,504; those of these do not.
    """

    dtype, ndim = np.dtype(np.float32), 2

    def __init__(self, split: SplitRows) -> None:
        self._split, self.shape = split, split.shape

    def __len__(self) -> int:
        return len(self._split)

    @property
    def T(self) -> NDArray[np.float32]:
        """(dim, rows), in memory."""
        return self[:].T

    def take(self, rows: ArrayLike) -> NDArray[np.float32]:
        """As `Split.take`, in float32."""
        return self._split.take(rows, self.dtype)

    def __getitem__(self, key: Any) -> NDArray[np.float32]:
        """As `Split[key]`, in float32."""
        return widen(np.asarray(self._split[key]), self.dtype)

    def of_class(self, name: str | int) -> NDArray[np.float32]:
        """As `Split.of_class`, in float32."""
        return self._split.of_class(name, self.dtype)

    def blocks(self, rows_per_block: int | None = None) -> Iterator[NDArray[np.float32]]:
        """As `Split.blocks`, in float32."""
        return self._split.blocks(rows_per_block, self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self[:]
        return np.array(values, dtype) if copy else np.asarray(values, dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        written = inputs[:1] if method == "at" else options.get("out", ())
        if any(isinstance(each, FloatRows) for each in written):
            raise InvalidInputError(
                f"rows of a store are not written to, as {ufunc.__name__} in place would; work on a copy: split.f4[:]"
            )
        plain = [each[:] if isinstance(each, FloatRows) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __repr__(self) -> str:
        return f"<FloatRows of {self._split!r}>"

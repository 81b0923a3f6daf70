"""A split in another type, and as the arrays of other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from actstore.compute.tensors import borrow, convert_into
from actstore.errors import InvalidInputError
from actstore.split import parse_rows

if TYPE_CHECKING:
    import dask.array
    import torch
    import xarray

    from actstore.split import Split


class _Copied:
    """Blocks of rows in memory of their own: a task's view would keep the pages of the store mapped behind it."""

    def __init__(self, split: Split) -> None:
        self._split, self.shape, self.ndim, self.dtype = split, split.shape, 2, split.dtype

    def __getitem__(self, key: tuple[slice, slice]) -> NDArray[Any]:
        rows, features = key
        values: NDArray[Any] = np.array(self._split[rows, features])
        self._split.rows.release(*rows.indices(len(self._split))[:2])
        return values


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
    out = np.empty(values.shape, wanted)
    convert_into(out, values)
    return out


class FloatRows:
    """The rows of a split in float32. numpy takes it for an array: `split.f4 @ weights`, `numpy.cov(split.f4.T)`.

    Sums and products of float16 rows overflow above 65,504; those of these do not.
    """

    dtype, ndim = np.dtype(np.float32), 2

    def __init__(self, split: Split) -> None:
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

    def __repr__(self) -> str:
        return f"<FloatRows of {self._split!r}>"


def to_dask(split: Split) -> dask.array.Array:
    import dask.array

    return dask.array.from_array(
        _Copied(split),
        chunks=(split.spec.chunk_rows, split.dim),
        name=f"activations-{split.content[7:23]}",
        meta=np.empty((0, 0), split.dtype),
    )


def to_torch(split: Split, rows: ArrayLike | None, dtype: Any, device: str) -> torch.Tensor:
    import torch

    wanted = None if rows is None else parse_rows(rows, len(split))
    count = len(split) if wanted is None else len(wanted)
    source_dtype = torch.float16 if split.dtype == np.float16 else torch.float32
    out = torch.empty((count, split.dim), dtype=dtype or source_dtype, device=device)
    if wanted is not None:
        for part, piece in split.rows.pieces(wanted):
            out[part].copy_(borrow(piece))
        return out
    step = split.spec.chunk_rows
    for start in range(0, count, step):
        stop = min(start + step, count)
        out[start:stop].copy_(borrow(split.rows.read(start, stop)))
        split.rows.release(start, stop)
    return out


def to_xarray(split: Split) -> xarray.Dataset:
    import xarray

    names = np.array([*split.classes, ""], dtype=object)  # label -1 picks the last: no class
    columns = {name: ("row", values) for name, values in split.columns.items()}
    return xarray.Dataset(
        {"activations": (("row", "feature"), to_dask(split)), "label": ("row", split.labels), **columns},
        coords={
            "row": np.arange(len(split)),
            "class_name": ("row", names[split.labels]),
            "id": ("row", np.array(list(split.ids), dtype=object)),
        },
        attrs={"split": split.name, "content": split.content, **{k: str(v) for k, v in split.spec.provenance.items()}},
    )

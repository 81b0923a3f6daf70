"""A split as the arrays of other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.compute.tensors import borrow
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

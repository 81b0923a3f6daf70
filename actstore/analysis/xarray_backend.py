"""`xarray.open_dataset("x.zarr", engine="actstore", group="train")`: a split, lazily and at the speed of `take`.

pyproject.toml names the backend to xarray. Rows and texts are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xarray import Dataset, DataTree, Variable
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core.indexing import (
    BasicIndexer,
    IndexingSupport,
    LazilyIndexedArray,
    OuterIndexer,
    explicit_indexing_adapter,
)

from actstore.analysis.alignment import default_split
from actstore.reading.adapters import class_names, origin, row_ids
from actstore.split import Split
from actstore.store import open as open_store


class ActstoreBackend(BackendEntrypoint):  # type: ignore[misc]
    """Opens a split of an activation store: `activations`, with class names, ids, labels and columns as coordinates."""

    description = "Activation stores of actstore, at the speed of a memory map"
    open_dataset_parameters = ("filename_or_obj", "drop_variables", "group", "checked")
    supports_groups = True

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        checked: bool = False,
    ) -> Dataset:
        """group: the split; by default the only one, or train. checked: as for `actstore.open`."""
        store = open_store(filename_or_obj, checked=checked)
        split = default_split(store) if group is None else store[group.strip("/")]
        dropped = {drop_variables} if isinstance(drop_variables, str) else set(drop_variables or ())
        coordinates = {name: value for name, value in _coordinates(split).items() if name not in dropped}
        data = {} if "activations" in dropped else {"activations": _activations(split)}
        return Dataset(data, coordinates, origin(split))

    def open_groups_as_dict(self, filename_or_obj: Any, **options: Any) -> dict[str, Dataset]:
        """For `xarray.open_groups`: every split."""
        store = open_store(filename_or_obj)
        opened = {f"/{name}": self.open_dataset(filename_or_obj, group=name, **options) for name in store}
        return {"/": Dataset(), **opened}

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        """For `xarray.open_datatree`: every split."""
        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


def _activations(split: Split) -> Variable:
    encoding = {"preferred_chunks": {"row": split.spec.chunk_rows, "feature": split.dim}}
    return Variable(
        ("row", "feature"),
        LazilyIndexedArray(_Lazy(split.shape, split.dtype, partial(_read_rows, split))),
        encoding=encoding,
    )


def _coordinates(split: Split) -> dict[str, Variable]:
    """Labels, numbers and dates in memory, as only all values of a column tell its type; texts when asked for."""
    specs = split.columns.specs
    texts = ["class_name", "id", *(name for name, spec in specs.items() if spec.kind == "text")]
    values = {name: split.columns[name] for name in specs if name not in texts}
    lazy = {
        name: LazilyIndexedArray(_Lazy((len(split),), np.dtype(object), partial(_read_texts, split, name)))
        for name in texts
    }
    return {name: Variable(("row",), each) for name, each in {**lazy, "label": split.labels, **values}.items()}


def read_outer(key: Any, shape: tuple[int, ...], read: Callable[[Any], Any]) -> Any:
    """What a key of xarray asks for, of a reader that indexes each axis by itself, in any order and with duplicates.

    xarray's own adapter would sort rows, read them and put them into their order by another copy: half of the speed.
    It is left to keys that pick points.
    """
    if isinstance(key, BasicIndexer | OuterIndexer):
        return read(key.tuple)
    return explicit_indexing_adapter(key, shape, IndexingSupport.OUTER, read)


class _Lazy(BackendArray):  # type: ignore[misc]
    """Values that are read when they are asked for; read: of a split, for a key of each axis."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], read: Callable[[Any], Any]) -> None:
        self.shape, self.dtype, self._read = shape, dtype, read

    def __getitem__(self, key: Any) -> Any:
        return read_outer(key, self.shape, self._read)


def _read_rows(split: Split, key: tuple[Any, Any]) -> NDArray[Any]:
    """A slice of mapped rows is a view of them, which cannot be written to."""
    rows, features = key
    values = split[rows]
    is_all = isinstance(features, slice) and features == slice(None)
    return values if is_all else values[..., features]


def _read_texts(split: Split, name: str, key: tuple[Any]) -> Any:
    """Class names, ids or a column of text, made of those rows alone that are asked for."""
    rows = np.arange(len(split))[key[0]]
    wanted = np.atleast_1d(rows)
    if name in ("class_name", "id"):
        found = (class_names if name == "class_name" else row_ids)(split, wanted)
    else:
        found = split.columns.stored(name).take(wanted).values()
    return found if rows.ndim else found[0]

"""A split as an Arrow table, which pandas, polars, DuckDB and HuggingFace datasets read; over the same memory where
the layouts agree: texts, labels and stored rows are not copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from actstore.analysis.facts import row_ids
from actstore.errors import InvalidInputError
from actstore.layout.columns import Column
from actstore.layout.texts import Texts
from actstore.split import parse_rows

if TYPE_CHECKING:
    import datasets
    import pandas
    import polars
    import pyarrow

    from actstore.split import Split

FEATURES = "activations"


def arrow_texts(texts: Sequence[str]) -> pyarrow.LargeStringArray:
    """(n,) texts; those of a store are laid out as Arrow lays them out and are not copied."""
    import pyarrow

    if not isinstance(texts, Texts):
        return pyarrow.array(texts, pyarrow.large_string())
    return pyarrow.LargeStringArray.from_buffers(
        len(texts), pyarrow.py_buffer(texts.offsets), pyarrow.py_buffer(texts.data)
    )


def to_arrow(
    split: Split, rows: ArrayLike | None = None, features: bool = False, dtype: DTypeLike | None = None
) -> pyarrow.Table:
    """Columns id, class (null where there is none), label, those of the split, and with features `activations`: lists
    of `dim` values in the type that is stored, or in `dtype`."""
    import pyarrow

    wanted = None if rows is None else parse_rows(rows, len(split))
    labels = split.labels if wanted is None else split.labels[wanted]
    columns = {
        "id": arrow_texts(_ids(split, wanted)),
        "class": _classes(split, labels),
        "label": pyarrow.array(labels),
    }
    for name in split.columns:
        stored = split.columns.stored(name)
        columns[name] = _arrow_column(stored if wanted is None else stored.take(wanted))
    if features:
        columns[FEATURES] = _arrow_features(_take(split, wanted, dtype))
    return pyarrow.table(columns)


def _take(split: Split, rows: NDArray[np.int64] | None, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """(n, dim): some rows, or all of them, which where they are mapped is a view."""
    if rows is not None:
        return split.take(rows, dtype)
    return split[:] if dtype is None else split.take(np.arange(len(split)), dtype)


def _ids(split: Split, rows: NDArray[np.int64] | None) -> Sequence[str]:
    ids = split.ids
    if rows is None:
        return ids
    return ids.take(rows) if isinstance(ids, Texts) else row_ids(split, rows).tolist()


def _classes(split: Split, labels: NDArray[np.int32]) -> pyarrow.DictionaryArray:
    import pyarrow

    numbers = pyarrow.array(labels, mask=labels < 0)
    return pyarrow.DictionaryArray.from_arrays(numbers, pyarrow.array(split.classes, pyarrow.string()))


def _arrow_column(column: Column) -> pyarrow.Array:
    """What stands for no value becomes null; so does an empty text, which cannot be told from none."""
    import pyarrow

    missing = column.missing()
    if isinstance(column.stored, Texts):
        texts = arrow_texts(column.stored)
        nothing = pyarrow.scalar(None, texts.type)
        return pyarrow.compute.if_else(pyarrow.array(missing), nothing, texts) if missing.any() else texts
    stored = column.stored
    if column.kind == "bool":
        return pyarrow.array(stored == 1, mask=missing)
    if column.kind == "date":
        return pyarrow.array(stored.astype(np.int64).view("M8[us]"), mask=missing)
    return pyarrow.array(stored, mask=missing if missing.any() else None)


def _arrow_features(values: NDArray[Any]) -> pyarrow.FixedSizeListArray:
    import pyarrow

    flat = np.ascontiguousarray(values).reshape(-1)
    kind = pyarrow.from_numpy_dtype(flat.dtype)
    child = pyarrow.Array.from_buffers(kind, len(flat), [None, pyarrow.py_buffer(flat)])
    return pyarrow.FixedSizeListArray.from_arrays(child, type=pyarrow.list_(kind, values.shape[1]))


def to_pandas(
    split: Split, rows: ArrayLike | None = None, features: bool = False, dtype: DTypeLike | None = None
) -> pandas.DataFrame:
    """As `to_arrow`; with features, each row's are an array (dim,)."""
    frame: pandas.DataFrame = to_arrow(split, rows).to_pandas()
    if features:
        wanted = None if rows is None else parse_rows(rows, len(split))
        column = np.empty(len(frame), object)
        column[:] = [*_take(split, wanted, dtype)]
        frame[FEATURES] = column
    return frame


def to_polars(
    split: Split, rows: ArrayLike | None = None, features: bool = False, dtype: DTypeLike | None = None
) -> polars.DataFrame:
    """As `to_arrow`; features are a column of arrays."""
    made: polars.DataFrame = require_library("polars").from_arrow(to_arrow(split, rows, features, dtype))
    return made


def to_huggingface(
    split: Split, rows: ArrayLike | None = None, features: bool = True, dtype: DTypeLike | None = None
) -> datasets.Dataset:
    """As `to_arrow`, over the same memory. `label` is a ClassLabel with the names of the classes where all rows have
    one."""
    library = require_library("datasets")
    table = to_arrow(split, rows, features, dtype)
    kinds = library.Features.from_arrow_schema(table.schema)
    labels = table.column("label").to_numpy()
    if len(labels) and labels.min() >= 0:
        kinds["label"] = library.ClassLabel(names=list(split.classes))
        table = table.set_column(table.schema.get_field_index("label"), "label", table.column("label").cast("int64"))
    made: datasets.Dataset = library.Dataset(library.table.InMemoryTable(table), library.DatasetInfo(features=kinds))
    return made


def require_library(name: str) -> Any:
    """A library that is not installed with actstore."""
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InvalidInputError(f"this needs the library {name}: pip install 'actstore[analysis]'") from error

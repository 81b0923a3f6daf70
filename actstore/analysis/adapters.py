"""A split for other tools. As an Arrow table, which pandas, polars, DuckDB and HuggingFace datasets read, over the same
memory where the layouts agree: texts, labels and stored rows are not copied. And for rsatoolbox, Brain-Score, AnnData
and SAELens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from actstore.errors import InvalidInputError
from actstore.layout.columns import Column, Texts
from actstore.reading.rows import parse_rows
from actstore.split import Split
from actstore.streams.sampling import epoch_order

if TYPE_CHECKING:
    import anndata
    import datasets
    import pandas
    import polars
    import pyarrow
    import rsatoolbox
    import torch
    import xarray

    from actstore.split import Split


def class_names(split: Split) -> NDArray[Any]:
    """(classes + 1,): the last one, "", is what label -1 picks."""
    return np.array([*split.classes, ""], dtype=object)


def row_ids(split: Split, rows: NDArray[np.int64]) -> NDArray[Any]:
    """(n,) the ids of some rows, as objects."""
    ids = split.ids
    found = np.empty(len(rows), dtype=object)
    found[:] = list(ids.take(rows)) if isinstance(ids, Texts) else [ids[row] for row in rows.tolist()]
    return found


def row_facts(split: Split, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Of some rows their ids, their classes ("" where there is none) and their columns, (n,) each."""
    columns = {name: split.columns.stored(name).take(rows).values() for name in split.columns}
    return {"id": row_ids(split, rows), "class": class_names(split)[split.labels[rows]], **columns}


def origin(split: Split) -> dict[str, str]:
    """Where rows come from: store, split, content, and what the store says of its network. Text, so that any format
    can keep it."""
    known = {key: str(value) for key, value in split.spec.provenance.items() if value is not None}
    return {**known, "store": str(split.store_path), "split": split.name, "content": split.content}


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


def to_rsatoolbox(split: Split, rows: ArrayLike | None = None) -> rsatoolbox.data.Dataset:
    """A Dataset: measurements (n, dim) in float64, and id, class and columns as descriptors of observations."""
    library = require_library("rsatoolbox")
    wanted = _parse(split, rows)
    facts = row_facts(split, wanted)
    return library.data.Dataset(
        split.take(wanted, "f8"),
        descriptors=origin(split),
        obs_descriptors={name: values.tolist() for name, values in facts.items()},
        channel_descriptors={"feature": np.arange(split.dim)},
    )


def to_assembly(split: Split, rows: ArrayLike | None = None) -> xarray.DataArray:
    """Brain-Score's (presentation, neuroid) as plain xarray: stimulus_id, object_name and columns of presentations;
    neuroid_id, neuroid_num, layer and model of neuroids. float32."""
    import xarray

    wanted = _parse(split, rows)
    facts, about = row_facts(split, wanted), origin(split)
    named = {"stimulus_id": facts.pop("id"), "object_name": facts.pop("class"), **facts}
    model, layer = about.get("backbone", split.store_path.name), about.get("layer", split.name)
    numbers = np.arange(split.dim)
    neuroids = {
        "neuroid_id": np.array([f"{model}.{layer}.{number}" for number in numbers], dtype=object),
        "neuroid_num": numbers,
        "layer": np.full(split.dim, layer, object),
        "model": np.full(split.dim, model, object),
    }
    coordinates = {name: ("presentation", values) for name, values in named.items()}
    coordinates |= {name: ("neuroid", values) for name, values in neuroids.items()}
    return xarray.DataArray(
        split.take(wanted, "f4"), coordinates, ("presentation", "neuroid"), name="activations", attrs=about
    )


def to_anndata(split: Split, rows: ArrayLike | None = None) -> anndata.AnnData:
    """X (n, dim) in float32; obs: class and columns, by id; uns["actstore"] says where the rows come from.

    Dates are texts such as 2020-01-31T00:00:00.000000, as anndata's files hold no dates.
    """
    library = require_library("anndata")
    import pandas

    def texts(values: Any) -> pandas.Index:  # as objects: anndata writes no Arrow texts, which pandas makes of them
        return pandas.Index(np.array(values, dtype=object), dtype=object)

    wanted = _parse(split, rows)
    facts = row_facts(split, wanted)
    observed = pandas.DataFrame(index=texts(facts.pop("id")).rename("id"))
    observed["class"] = pandas.Categorical.from_codes(split.labels[wanted], texts(split.classes))
    for name in split.columns:
        values = np.datetime_as_string(facts[name]) if facts[name].dtype.kind == "M" else facts[name]
        observed[name] = texts(values) if values.dtype.kind in "OU" else values
    features = pandas.DataFrame(index=texts([str(number) for number in range(split.dim)]).rename("feature"))
    return library.AnnData(split.take(wanted, "f4"), obs=observed, var=features, uns={"actstore": origin(split)})


def to_sae(split: Split, batch_size: int = 4096, seed: int = 0, device: str = "cpu") -> Iterator[torch.Tensor]:
    """Batches (batch_size, dim) of float32 without end, as the trainers of SAELens take them (`data_provider=`).

    Every pass over the rows is in an order of its own, a function of (seed, pass); rows that fill no batch at the end
    of a pass are left to the next.
    """
    import torch

    if not 1 <= batch_size <= len(split):
        raise InvalidInputError(f"batch_size must be from 1 to the {len(split):,} rows there are, got {batch_size}")
    return (
        torch.from_numpy(split.take(order[start : start + batch_size], "f4")).to(device)
        for order in (epoch_order(len(split), seed, epoch) for epoch in count())
        for start in range(0, len(split) - batch_size + 1, batch_size)
    )


def _parse(split: Split, rows: ArrayLike | None) -> NDArray[np.int64]:
    return np.arange(len(split)) if rows is None else parse_rows(rows, len(split))

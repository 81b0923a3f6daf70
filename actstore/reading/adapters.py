"""A split for other tools. As an Arrow table, which pandas, polars, DuckDB and HuggingFace datasets read, over the same
memory where the layouts agree: texts, labels and stored rows are not copied. And for dask, xarray, rsatoolbox,
Brain-Score and AnnData."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from actstore.errors import InvalidInputError
from actstore.layout.columns import Column, Texts
from actstore.reading.rows import parse_rows
from actstore.reading.split_rows import SplitRows, widen

if TYPE_CHECKING:
    import anndata
    import dask.array
    import datasets
    import pandas
    import polars
    import pyarrow
    import rsatoolbox
    import xarray

FEATURES = "activations"


class AdaptedRows(SplitRows):
    """A split as other libraries have it."""

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
        import pyarrow

        wanted = None if rows is None else parse_rows(rows, len(self))
        labels = self.labels if wanted is None else self.labels[wanted]
        columns = {
            "id": arrow_texts(_ids(self, wanted)),
            "class": _classes(self, labels),
            "label": pyarrow.array(labels),
        }
        for name in self.columns:
            stored = self.columns.stored(name)
            columns[name] = _arrow_column(stored if wanted is None else stored.take(wanted))
        if features:
            columns[FEATURES] = _arrow_features(_take(self, wanted, dtype))
        return pyarrow.table(columns)

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
        frame: pandas.DataFrame = self.to_arrow(rows).to_pandas()
        if features:
            wanted = None if rows is None else parse_rows(rows, len(self))
            column = np.empty(len(frame), object)
            column[:] = [*_take(self, wanted, dtype)]
            frame[FEATURES] = column
        return frame

    def to_polars(
        self, rows: ArrayLike | None = None, features: bool = False, dtype: DTypeLike | None = None
    ) -> polars.DataFrame:
        """Make a data frame of polars from the table of `to_arrow`.

        Args:
            rows: row numbers (n,), by default all.
            features: also bring the values, as a column `activations`.
            dtype: "f4" or "f8" for values in float32 or float64.
        """
        made: polars.DataFrame = require_library("polars").from_arrow(self.to_arrow(rows, features, dtype))
        return made

    def to_huggingface(
        self, rows: ArrayLike | None = None, features: bool = True, dtype: DTypeLike | None = None
    ) -> datasets.Dataset:
        """Make a Dataset of HuggingFace from the table of `to_arrow`, over the same memory.

        Args:
            rows: row numbers (n,), by default all.
            features: False leaves the values out.
            dtype: "f4" or "f8" for values in float32 or float64.
        """
        library = require_library("datasets")
        table = self.to_arrow(rows, features, dtype)
        kinds = library.Features.from_arrow_schema(table.schema)
        labels = table.column("label").to_numpy()
        if len(labels) and labels.min() >= 0:
            kinds["label"] = library.ClassLabel(names=list(self.classes))
            table = table.set_column(
                table.schema.get_field_index("label"), "label", table.column("label").cast("int64")
            )
        made: datasets.Dataset = library.Dataset(
            library.table.InMemoryTable(table), library.DatasetInfo(features=kinds)
        )
        return made

    def to_rsatoolbox(self, rows: ArrayLike | None = None) -> rsatoolbox.data.Dataset:
        """Make a Dataset of rsatoolbox, with ids, classes and columns as descriptors.

        Args:
            rows: row numbers (n,), by default all.

        Returns:
            A Dataset whose measurements are (n, dim) in float64.
        """
        library = require_library("rsatoolbox")
        wanted = _parse(self, rows)
        facts = row_facts(self, wanted)
        return library.data.Dataset(
            self.take(wanted, "f8"),
            descriptors=origin(self),
            obs_descriptors={name: values.tolist() for name, values in facts.items()},
            channel_descriptors={"feature": np.arange(self.dim)},
        )

    def to_assembly(self, rows: ArrayLike | None = None) -> xarray.DataArray:
        """Make the array that Brain-Score expects, as plain xarray.

        Args:
            rows: row numbers (n,), by default all.

        Returns:
            (presentation, neuroid) in float32, with the coordinates that Brain-Score names.
        """
        import xarray

        wanted = _parse(self, rows)
        facts, about = row_facts(self, wanted), origin(self)
        named = {"stimulus_id": facts.pop("id"), "object_name": facts.pop("class"), **facts}
        model, layer = about.get("backbone", self.store_path.name), about.get("layer", self.name)
        numbers = np.arange(self.dim)
        neuroids = {
            "neuroid_id": np.array([f"{model}.{layer}.{number}" for number in numbers], dtype=object),
            "neuroid_num": numbers,
            "layer": np.full(self.dim, layer, object),
            "model": np.full(self.dim, model, object),
        }
        coordinates = {name: ("presentation", values) for name, values in named.items()}
        coordinates |= {name: ("neuroid", values) for name, values in neuroids.items()}
        return xarray.DataArray(
            self.take(wanted, "f4"), coordinates, ("presentation", "neuroid"), name="activations", attrs=about
        )

    def to_anndata(self, rows: ArrayLike | None = None) -> anndata.AnnData:
        """Make an AnnData object, as scanpy reads it. Dates become texts, as anndata's files hold none.

        Args:
            rows: row numbers (n,), by default all.

        Returns:
            `X` (n, dim) in float32, with classes and columns in `obs`.
        """
        library = require_library("anndata")
        import pandas

        def texts(values: Any) -> pandas.Index:  # as objects: anndata writes no Arrow texts, which pandas makes of them
            return pandas.Index(np.array(values, dtype=object), dtype=object)

        wanted = _parse(self, rows)
        facts = row_facts(self, wanted)
        observed = pandas.DataFrame(index=texts(facts.pop("id")).rename("id"))
        observed["class"] = pandas.Categorical.from_codes(self.labels[wanted], texts(self.classes))
        for name in self.columns:
            values = np.datetime_as_string(facts[name]) if facts[name].dtype.kind == "M" else facts[name]
            observed[name] = texts(values) if values.dtype.kind in "OU" else values
        features = pandas.DataFrame(index=texts([str(number) for number in range(self.dim)]).rename("feature"))
        return library.AnnData(self.take(wanted, "f4"), obs=observed, var=features, uns={"actstore": origin(self)})

    def to_dask(self) -> dask.array.Array:
        """Make a lazy dask array of all rows.

        Returns:
            (rows, dim), with one block for each chunk.

        Examples:
            >>> train.to_dask().mean(axis=0).compute().shape
            (8,)
        """
        import dask.array

        return dask.array.from_array(
            _Copied(self),
            chunks=(self.spec.chunk_rows, self.dim),
            name=f"activations-{self.content[7:23]}",
            meta=np.empty((0, 0), self.dtype),
        )

    def to_xarray(self) -> xarray.Dataset:
        """Make a lazy Dataset of xarray.

        Returns:
            A Dataset with `activations` (row, feature), `label` and the columns as variables, and with ids and class
            names as coordinates.

        Examples:
            >>> train.to_xarray().sizes["row"]
            40
        """
        import xarray

        rows, columns = np.arange(len(self)), {name: ("row", values) for name, values in self.columns.items()}
        return xarray.Dataset(
            {"activations": (("row", "feature"), self.to_dask()), "label": ("row", self.labels), **columns},
            {"row": rows, "class_name": ("row", class_names(self, rows)), "id": ("row", row_ids(self, rows))},
            origin(self),
        )


class _Copied:
    """Blocks of rows in memory of their own: a task's view would keep the pages of the store mapped behind it."""

    def __init__(self, split: SplitRows) -> None:
        self._split, self.shape, self.ndim, self.dtype = split, split.shape, 2, split.dtype

    def __getitem__(self, key: tuple[slice, slice]) -> NDArray[Any]:
        rows, features = key
        values: NDArray[Any] = np.array(self._split[rows, features])
        self._split.rows.release(*rows.indices(len(self._split))[:2])
        return values


def class_names(split: SplitRows, rows: NDArray[np.int64]) -> NDArray[Any]:
    """(n,) the classes of some rows, "" where there is none, as objects."""
    names: NDArray[Any] = np.array([*split.classes, ""], dtype=object)[split.labels[rows]]  # -1 picks the last
    return names


def row_ids(split: SplitRows, rows: NDArray[np.int64]) -> NDArray[Any]:
    """(n,) the ids of some rows, as objects."""
    ids = split.ids
    found = np.empty(len(rows), dtype=object)
    found[:] = list(ids.take(rows)) if isinstance(ids, Texts) else [ids[row] for row in rows.tolist()]
    return found


def row_facts(split: SplitRows, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Of some rows their ids, their classes ("" where there is none) and their columns, (n,) each."""
    columns = {name: split.columns.stored(name).take(rows).values() for name in split.columns}
    return {"id": row_ids(split, rows), "class": class_names(split, rows), **columns}


def origin(split: SplitRows) -> dict[str, str]:
    """Where rows come from: store, split, content, and what the store says of its network. Text, so that any format
    can keep it."""
    known = {key: str(value) for key, value in split.spec.provenance.items() if value is not None}
    return {**known, "store": str(split.store_path), "split": split.name, "content": split.content}


def arrow_texts(texts: Sequence[str]) -> pyarrow.LargeStringArray:
    """(n,) texts; those of a store are laid out as Arrow lays them out and are not copied."""
    import pyarrow

    if not isinstance(texts, Texts):
        return pyarrow.array(texts, pyarrow.large_string())
    return pyarrow.LargeStringArray.from_buffers(
        len(texts), pyarrow.py_buffer(texts.offsets), pyarrow.py_buffer(texts.data)
    )


def _take(split: SplitRows, rows: NDArray[np.int64] | None, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """(n, dim): some rows, or all of them, which where they are mapped is a view."""
    if rows is not None:
        return split.take(rows, dtype)
    return split[:] if dtype is None else widen(split[:], dtype)


def _ids(split: SplitRows, rows: NDArray[np.int64] | None) -> Sequence[str]:
    ids = split.ids
    if rows is None:
        return ids
    return ids.take(rows) if isinstance(ids, Texts) else row_ids(split, rows).tolist()


def _classes(split: SplitRows, labels: NDArray[np.int32]) -> pyarrow.DictionaryArray:
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


def require_library(name: str) -> Any:
    """A library that is not installed with actstore."""
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InvalidInputError(f"this needs the library {name}: pip install 'actstore[analysis]'") from error


def _parse(split: SplitRows, rows: ArrayLike | None) -> NDArray[np.int64]:
    return np.arange(len(split)) if rows is None else parse_rows(rows, len(split))

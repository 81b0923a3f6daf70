"""A split as what libraries of the field expect: rsatoolbox, Brain-Score, SAELens, AnnData."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.analysis.arrow import require_library
from actstore.analysis.facts import origin, row_facts
from actstore.errors import InvalidInputError
from actstore.split import parse_rows
from actstore.streams.sampling import epoch_order

if TYPE_CHECKING:
    import anndata
    import rsatoolbox
    import torch
    import xarray

    from actstore.split import Split


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

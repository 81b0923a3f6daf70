"""A finished store from arrays in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from actstore.creation import remove_store, require_free
from actstore.errors import InvalidInputError, LockedError
from actstore.spec import parse_split_name
from actstore.storage.place import AnyPlace, parse_place
from actstore.store import ActivationStore
from actstore.tables.importing import fill_split, open_or_create
from actstore.tables.row_source import Table, array_rows
from actstore.writing.column_checks import parse_columns

Arrays = (
    tuple[ArrayLike, ArrayLike | None]
    | tuple[ArrayLike, ArrayLike | None, Iterable[str] | None]
    | tuple[ArrayLike, ArrayLike | None, Iterable[str] | None, Mapping[str, Any]]
)


def from_arrays(
    path: AnyPlace, splits: Mapping[str, Arrays], classes: Sequence[str] | None = None, **options: Any
) -> ActivationStore:
    """A store from {split: (activations (n, dim), labels (n,)[, ids[, columns {name: (n,)}]])}.

    Rows keep their type: fp16 as f2, anything else as f4, which rounds float64; dtype="f2" halves fp32. Memory maps are
    read block by block. A failure leaves nothing behind. Without `classes`, class names are the labels themselves:
    the distinct strings, or the numbers up to the largest. Further options as for `create`.
    """
    tables = {parse_split_name(name): _parse(name, parts) for name, parts in splits.items()}
    if not tables:
        raise InvalidInputError("from_arrays needs at least one split, such as {'train': (activations, labels)}")
    place = parse_place(path)
    require_free(place)
    existed = place.exists()  # as an empty folder
    store = open_or_create(place, tables, classes, **options)
    try:
        for name, table in tables.items():
            fill_split(store, name, table, source={"kind": "arrays"})
    except LockedError:  # somebody else writes there: it is not ours to remove
        raise
    except BaseException:
        if store.splits.keys() <= tables.keys():  # nobody else has put rows there
            remove_store(place, keep_top=existed)
        raise
    return store


def _parse(name: str, parts: Arrays) -> Table:
    if not isinstance(parts, tuple) or len(parts) not in (2, 3, 4):
        raise InvalidInputError(
            f"split {name!r} must be (activations, labels), (activations, labels, ids) or (…, columns)"
        )
    activations, labels, ids, columns = (*parts, None, None)[:4]
    values = activations if isinstance(activations, np.ndarray) else np.asarray(activations)  # a memmap stays one
    if values.ndim != 2:
        raise InvalidInputError(f"activations of split {name!r} must be two-dimensional, got shape {values.shape}")
    return Table(
        array_rows(values),
        None if labels is None else np.asarray(labels),
        None if ids is None else list(ids),
        parse_columns(columns, len(values), {}, f"split {name!r}"),
    )

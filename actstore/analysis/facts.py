"""What is known of rows beside their values, as plain arrays: ids, class names, columns, where they come from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.layout.texts import Texts
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

"""Filters -> row numbers."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError, reason_of
from actstore.layout.columns import NONE, Column
from actstore.layout.texts import Texts
from actstore.reading.conditions import matching_rows, parse_where
from actstore.reading.rows import parse_rows
from actstore.storage.tensor_file import load_npy

if TYPE_CHECKING:
    from actstore.split import Split


def find_rows(
    split: Split,
    classes: Sequence[str | int] | None = None,
    path_glob: str | None = None,
    rows: Any = None,
    where: str | Sequence[str] | None = None,
) -> NDArray[np.int64]:
    """Rows that satisfy every filter given, ascending and distinct.

    classes: names or labels. path_glob: a shell pattern for ids. rows: a slice, row numbers, a mask,
    "1000:2000", or the path of a text or .npy file of row numbers. where: conditions on columns, see `filters`;
    class, label, id and row can be named too.
    """
    keep = np.ones(len(split), bool)
    if classes is not None:
        if isinstance(classes, str):
            classes = [classes]
        wanted = np.array([split.class_index.position(name) for name in classes], np.int64)
        keep &= np.isin(split.labels, wanted)
    if path_glob is not None:
        keep &= _mask(glob_rows(split.ids, path_glob), len(split))
    if rows is not None:
        keep &= _mask(parse_row_filter(rows, len(split)), len(split))
    if where is not None and len(where):
        _require_classes(split, where)
        keep &= matching_rows(where, lambda name: _column(split, name), len(split))
    return np.flatnonzero(keep)


def _require_classes(split: Split, where: str | Sequence[str]) -> None:
    """`class = tenhc` is a mistake, not a question that no row answers."""
    for text in [where] if isinstance(where, str) else where:
        for condition in parse_where(text):
            if condition.column == "class" and condition.operator in ("==", "!=", "in"):
                for value in condition.values:
                    if value.text and not value.is_none:
                        split.class_index.position(value.text)


def _column(split: Split, name: str) -> Column:
    """A column of the split, or what every split has by itself."""
    if name == "row":
        return Column("int", np.arange(len(split)))
    if name == "label":
        return Column("int", np.where(split.labels < 0, NONE["int"], split.labels.astype(np.int64)))
    if name == "class":
        numbers = split.labels.astype(np.int64) % (len(split.classes) + 1)  # -1 is the last: no class
        return Column("text", Texts.of([*split.classes, ""]).take(numbers))
    if name == "id":
        return Column("text", Texts.of(split.ids))
    return split.columns.stored(name)


def parse_row_filter(rows: Any, count: int) -> NDArray[np.int64]:
    if isinstance(rows, slice):
        return np.arange(*rows.indices(count))
    if isinstance(rows, str) and not rows:
        raise InvalidInputError("rows is empty; give a range such as 0:1000, or a file of row numbers")
    if isinstance(rows, str | PathLike):
        return _parse_range(str(rows), count) if ":" in str(rows) else parse_rows(_read_row_file(Path(rows)), count)
    return parse_rows(rows, count)


def _parse_range(text: str, count: int) -> NDArray[np.int64]:
    parts = str(text).split(":")
    try:
        numbers = [int(part) if part else None for part in parts]
        return np.arange(*slice(*numbers).indices(count))
    except (ValueError, TypeError):
        raise InvalidInputError(f"rows must look like 1000:2000 (or start:stop:step), got {str(text)!r}") from None


def _read_row_file(path: Path) -> NDArray[Any]:
    if not path.exists():
        raise InvalidInputError(f"no such row file: {path}; give a file of row numbers, or a range such as 0:100")
    if path.suffix == ".npy":
        return load_npy(path, "an array of row numbers")
    try:
        return np.array(path.read_text("utf-8-sig").split(), int)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidInputError(f"{path} is not a list of row numbers: {reason_of(error)}") from error


def glob_rows(ids: Sequence[str], pattern: str) -> NDArray[np.int64]:
    """Rows whose id matches a shell pattern."""
    matches = re.compile(fnmatch.translate(pattern)).match
    return np.fromiter((row for row, name in enumerate(ids) if matches(name)), np.int64)


def _mask(rows: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    mask = np.zeros(count, bool)
    mask[rows] = True
    return mask

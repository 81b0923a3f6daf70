"""A csv or parquet file that lists images: columns path and label, and split if there are several."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from actstore.errors import InvalidInputError, reason_of
from actstore.images.image_set import ImageItem, Listing, ending_fault, id_fault, printable

ENDINGS = (".csv", ".parquet")
Row = tuple[str, str | None, str]  # path, label, split
_PROBED = 20


def list_file(path: Path) -> dict[str, Listing]:
    """Split name -> images in the order of the file. Paths are relative to the file's folder, or absolute."""
    splits: dict[str, Listing] = {}
    folder = str(path.parent)
    names: dict[str, str] = {}  # one object per label, not one per row
    for path_text, label, split in _rows(path):
        items, skipped = splits.setdefault(split, ([], []))
        name = "/".join(part for part in path_text.split("/") if part not in ("", "."))
        if reason := _fault(name, label):
            skipped.append((printable(name or path_text), reason))
        else:
            shared = None if label is None else names.setdefault(label, label)
            items.append(ImageItem(name, shared, "/" if path_text.startswith("/") else folder))
    _refuse_wrong_folder(path, splits)
    return splits


def _fault(name: str, label: str | None) -> str | None:
    if fault := id_fault(name):
        return fault
    if label is not None and (fault := id_fault(label)):
        return f"its label {label!r} is refused: {fault}"
    return ending_fault(name)


def _refuse_wrong_folder(path: Path, splits: dict[str, Listing]) -> None:
    """A list whose paths start elsewhere would otherwise fail image by image."""
    for items, _ in splits.values():
        probed = items[:_PROBED]
        # os.path: a name too long for the disk does not exist, where Path raises
        if probed and not any(os.path.exists(item.path) for item in probed):  # noqa: PTH110
            raise InvalidInputError(
                f"{path}: none of its first {len(probed)} images exist, such as {probed[0].path}; "
                "paths are expected relative to the folder of the list"
            )


def _rows(path: Path) -> Iterator[Row]:
    try:
        yield from _parquet_rows(path) if path.suffix == ".parquet" else _csv_rows(path)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"{path} is not a csv in UTF-8: {reason_of(error)}") from None
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}") from None


def _csv_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True, skipinitialspace=True)
        has_split = _check_columns(path, reader.fieldnames or [])
        for row in reader:
            if row["label"] is None or None in row:
                raise InvalidInputError(
                    f"line {reader.line_num} of {path} does not have as many columns as the header; "
                    "quote paths that hold a comma"
                )
            yield _row(row["path"], row["label"], row["split"] if has_split else None)


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            has_split = _check_columns(path, file.schema_arrow.names)
            columns = ["path", "label", "split"] if has_split else ["path", "label"]
            for batch in file.iter_batches(columns=columns):
                values = [batch.column(name).to_pylist() for name in columns]
                for row in zip(*values, strict=True):
                    yield _row(*row)
    except pyarrow.ArrowException as error:
        raise InvalidInputError(f"{path} is not a readable parquet file: {reason_of(error)}") from None


def _row(path: Any, label: Any, split: Any = None) -> Row:
    text = "" if label is None else str(label).strip()
    return str(path or ""), text or None, str(split or "").strip() or "train"


def _check_columns(path: Path, names: Iterable[str]) -> bool:
    """Whether there is a split column."""
    columns = list(names)
    if "path" not in columns or "label" not in columns:
        raise InvalidInputError(
            f"{path} has columns {', '.join(columns) or 'none'}; expected a header path,label[,split]"
        )
    return "split" in columns

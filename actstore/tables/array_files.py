"""Array files by their ending: which arrays they hold, and which of them are splits; a file known again by its
content."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import InvalidInputError, reason_of
from actstore.layout.columns import Column
from actstore.spec import ColumnKind, Json
from actstore.storage.atomic_file import CRC_BYTES, crc32c, load_npy
from actstore.tables.containers import (
    as_text,
    open_hdf,
    open_npy,
    open_npz,
    open_parquet,
    open_safetensors,
    open_torch,
)
from actstore.tables.row_source import ArrayFile, Table
from actstore.tables.wide_tables import wide_csv
from actstore.writing.row_checks import parse_column


def open_tables(
    path: Path,
    array: str | None,
    split: str | None,
    columns: Sequence[str] = (),
    kinds: Mapping[str, ColumnKind] | None = None,
) -> tuple[dict[str, Table], list[str] | None]:
    """{split name: table} and class names, where the file has them.

    With `array`, that array alone becomes `split` (default "train"). Otherwise every two-dimensional
    array K beside a K_labels becomes split K; else the only two-dimensional array, with `labels`. columns: which arrays
    or columns of the file, K_NAME or NAME, are kept beside the rows; by default those that can be nothing else.
    """
    if not path.exists():
        raise InvalidInputError(f"no such file: {path}")
    file = _open(path, columns, kinds or {})
    tables = {}
    for name, key in _choose_splits(path, file, array, split).items():
        labels = next((array for array in (f"{key}_labels", "labels", "label") if array in file.shapes), None)
        ids = next((array for array in (f"{key}_ids", "ids", "id") if array in file.shapes), None)
        tables[name] = Table(
            file.rows(key),
            None if labels is None else file.values(labels),
            None if ids is None else as_text(file.values(ids)),
            _columns_of(path, file, key, columns),
        )
    classes = as_text(file.values("classes")) if "classes" in file.shapes else None
    return tables, classes


def _columns_of(path: Path, file: ArrayFile, key: str, wanted: Sequence[str]) -> dict[str, Column]:
    if not wanted:
        return {name: read() for name, read in file.columns.items()}
    flat = [name for name, shape in file.shapes.items() if len(shape) == 1]
    columns = {}
    for name in wanted:
        array = next((array for array in (f"{key}_{name}", name) if array in flat), None)
        if name in file.columns:
            columns[name] = file.columns[name]()
        elif array is not None:
            columns[name] = parse_column(name, file.values(array))
        else:
            known = dict.fromkeys([*file.columns, *flat])
            raise InvalidInputError(f"{path} has no column {name!r}; it has: {', '.join(known) or 'none'}")
    return columns


def read_column(path: Path, what: str) -> NDArray[Any]:
    """Labels or ids in a file of their own: .npy, or text with one value per line."""
    if not path.exists():
        raise InvalidInputError(f"no such {what} file: {path}")
    if path.suffix == ".npy":
        return np.atleast_1d(load_npy(path, f"a list of {what}"))
    try:
        # not splitlines: an id may hold one of the rarer line separators of Unicode
        lines = path.read_text(encoding="utf-8-sig").removesuffix("\n").replace("\r\n", "\n").split("\n")
        numeric = what == "labels" and all(re.fullmatch(r"\s*-?[0-9]+\s*", line) for line in lines)
        values = np.array([int(line) for line in lines], np.int64) if numeric else np.array(lines, dtype=object)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidInputError(f"{path} is not a list of {what}: {reason_of(error)}") from error
    blank = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if blank is not None:
        none = "; -1 among numbers stands for no label" if what == "labels" else ""
        raise InvalidInputError(
            f"line {blank} of {path} is blank; expected {what}, one per line{none}; fill it in or remove it"
        )
    return values


def _choose_splits(path: Path, file: ArrayFile, array: str | None, split: str | None) -> dict[str, str]:
    matrices = [name for name, shape in file.shapes.items() if len(shape) == 2]
    listed = ", ".join(matrices) or "none"
    if array is not None:
        if array not in matrices:
            raise InvalidInputError(f"{path} has no two-dimensional array {array!r}; it has: {listed}")
        return {split or "train": array}
    labelled = {name: name for name in matrices if f"{name}_labels" in file.shapes}
    if split is not None and split in labelled:
        return {split: split}
    if labelled and split is None:
        return labelled
    if len(matrices) == 1:
        return {split or "train": matrices[0]}
    raise InvalidInputError(f"{path} holds {len(matrices)} two-dimensional arrays ({listed}); choose one with --array")


def _open(path: Path, columns: Sequence[str], kinds: Mapping[str, ColumnKind]) -> ArrayFile:
    openers: dict[str, Callable[[Path], ArrayFile]] = {
        ".npy": open_npy,
        ".npz": open_npz,
        ".h5": open_hdf,
        ".hdf5": open_hdf,
        ".parquet": lambda path: open_parquet(path, columns),
        ".csv": lambda path: wide_csv(path, columns, kinds),
        ".safetensors": open_safetensors,
        ".pt": open_torch,
        ".pth": open_torch,
    }
    if path.suffix not in openers:
        raise InvalidInputError(f"{path} has ending {path.suffix!r}; expected one of {', '.join(openers)}")
    try:
        return openers[path.suffix](path)
    except (OSError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise InvalidInputError(f"{path} cannot be read as {path.suffix}: {reason_of(error)}") from error


CONTENT = "content"
_FILES = ("labels", "ids", "classes", "columns")
_PIECE = 1 << 16  # bytes


def find_source(
    sources: Sequence[Mapping[str, Json]], source: Mapping[str, Json], content: Callable[[], str] | None = None
) -> Mapping[str, Json] | None:
    """The earlier source that gave the same rows. content: of the new one, asked for where sizes are the same.

    Sources without a content (generated rows, or stores of older versions) are compared by what they say of themselves.
    """
    for before in sources:
        if content is not None and CONTENT in before:
            if _sizes(before) == _sizes(source) and before[CONTENT] == content():
                return before
        elif {key: value for key, value in before.items() if key not in ("rows", CONTENT)} == dict(source):
            return before
    return None


def _sizes(source: Mapping[str, Json]) -> list[Json]:
    return [source.get("size"), *(source.get(name, {}).get("size") for name in _FILES), source.get("column")]


class FileContent:
    """Names the rows that a source of kind "file" gives: its bytes, those of the files beside it, and which array.

    sha256 over the crc32c of every 64 KiB: several times the rate of an import, where sha256 of all bytes (0.5 GB/s)
    would halve it. `begin` reads the files on a thread of its own, side by side with the import.
    """

    def __init__(self, source: Mapping[str, Json]) -> None:
        self._source = source
        self._found: str | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        if self._found is None and self._thread is None:
            self._thread = threading.Thread(target=self._read_early, name="actstore-content", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def __call__(self) -> str:
        if self._thread is not None:
            self._thread.join()
        if self._found is None:
            self._read()
        assert self._found is not None
        return self._found

    def _read_early(self) -> None:
        with suppress(OSError):  # `__call__` reads again, and raises it
            self._read()

    def _read(self) -> None:
        source, digest = self._source, hashlib.sha256()
        parts = {name: source[name]["path"] for name in _FILES if name in source}
        features = [source["column"]] if "column" in source else []
        digest.update(json.dumps([source["array"], source["split"], sorted(parts), *features]).encode())
        for path in (source["path"], *parts.values()):
            with Path(path).open("rb") as file:
                while piece := file.read(_PIECE):
                    if self._stopped.is_set():
                        return
                    digest.update(crc32c(piece).to_bytes(CRC_BYTES, "little"))
            digest.update(b"end")
        self._found = "sha256:" + digest.hexdigest()

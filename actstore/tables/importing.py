"""Rows of files and arrays into a store: which arrays a file holds, which of them are splits, and what belongs to their
rows in files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actstore.errors import InvalidInputError, LockedError, reason_of
from actstore.layout.columns import Column
from actstore.layout.metadata import remove_own, require_free
from actstore.progress import SplitProgress
from actstore.spec import ColumnKind, Json, parse_split_name
from actstore.storage.atomic_file import load_npy
from actstore.storage.place import AnyPlace, parse_place
from actstore.store import ActivationStore, open
from actstore.tables.array_files import as_text, open_file
from actstore.tables.filling import FileContent, check_table, fill_split, open_or_create
from actstore.tables.row_source import ArrayFile, Rounding, SyntheticSpec, Table, array_rows
from actstore.tables.tabular import read_columns
from actstore.writing.row_checks import parse_column, parse_columns

Arrays = (
    tuple[ArrayLike, ArrayLike | None]
    | tuple[ArrayLike, ArrayLike | None, Iterable[str] | None]
    | tuple[ArrayLike, ArrayLike | None, Iterable[str] | None, Mapping[str, Any]]
)


@dataclass(frozen=True)
class ImportRequest:
    """Files to import and how; see `actstore import --help`."""

    path: Path
    array: str | None = None
    split: str | None = None
    labels: Path | None = None
    ids: Path | None = None
    classes: Path | None = None
    columns: Path | None = None
    column: tuple[str, ...] = ()  # which columns, of that file or else of `path` itself

    def source(self, split: str) -> dict[str, Json]:
        """What identifies the origin of a split's rows; enough to read them again."""
        named = {"labels": self.labels, "ids": self.ids, "classes": self.classes, "columns": self.columns}
        return {
            "kind": "file",
            **_fingerprint(self.path),
            "array": self.array,
            "split": split,
            **{key: _fingerprint(path) for key, path in named.items() if path is not None},
            **({"column": list(self.column)} if self.column else {}),
        }


def read_request(
    request: ImportRequest, kinds: Mapping[str, ColumnKind] | None = None
) -> tuple[dict[str, Table], list[str] | None]:
    """Tables by split, with labels, ids and columns of their own files where those were given; and class names, where
    there are any.

    With `array`, that array alone becomes `split` (default "train"). Otherwise every two-dimensional
    array K beside a K_labels becomes split K; else the only two-dimensional array, with `labels`. kinds: the types that
    columns have in the store; cells of a csv are read as those.
    """
    path, known = request.path, kinds or {}
    own = request.column if request.columns is None else ()
    file = open_file(path, own, known)
    splits = _choose_splits(path, file, request.array, request.split)
    beside = [file for file in (request.labels, request.ids, request.columns) if file is not None]
    if beside and len(splits) != 1:
        raise InvalidInputError(
            f"{path} holds the splits {', '.join(splits)}; choose one with --array to give it labels, ids or columns"
        )
    tables = {name: _table(request, file, key, own, known) for name, key in splits.items()}
    if request.classes is not None:
        return tables, as_text(read_column(request.classes, "classes"))
    return tables, as_text(file.values("classes")) if "classes" in file.shapes else None


def _table(
    request: ImportRequest, file: ArrayFile, key: str, own: Sequence[str], kinds: Mapping[str, ColumnKind]
) -> Table:
    """The rows of an array of the file, and what belongs to them there or in files of its own."""

    def values(beside: Path | None, what: str, *names: str) -> NDArray[Any] | None:
        name = next((name for name in names if name in file.shapes), None)
        if beside is None:
            return None if name is None else file.values(name)
        return read_column(beside, what)

    labels = values(request.labels, "labels", f"{key}_labels", "labels", "label")
    named = values(request.ids, "ids", f"{key}_ids", "ids", "id")
    ids = None if named is None else as_text(named)
    columns = _columns_of(request.path, file, key, own)
    if request.columns is not None:
        columns |= read_columns(request.columns, request.column, ids, kinds)
    return Table(file.rows(key), labels, ids, columns)


def import_file(
    request: ImportRequest,
    store: AnyPlace,
    progress: SplitProgress | None = None,
    restart: bool = False,
    rounding: Rounding | None = None,
    **options: Any,
) -> ActivationStore:
    """Make or extend a store by the splits of a file; finished splits of the same file are left alone.

    A new store takes the type of the rows, see `natural_dtype`. rounding: is told what the store's type cost.
    """
    tables, classes = read_request(request)
    target = open_or_create(store, tables, classes, provenance={"source": str(request.path)}, **options)
    for split, table in tables.items():
        watched = table if rounding is None else rounding.watch(table, target.spec.dtype)
        source = request.source(split)
        fill_split(target, split, watched, source, progress, restart, FileContent(source))
    return target


def append_file(
    request: ImportRequest,
    store: AnyPlace,
    progress: SplitProgress | None = None,
    restart: bool = False,
    rounding: Rounding | None = None,
    again: bool = False,
) -> int:
    """Add the rows of a file to finished splits, new classes included; returns the rows added.

    A file that was added before adds nothing, unless `again` says that its rows are wanted once more.
    """
    target, added = open(store), 0
    kinds = {column.name: column.kind for split in target.splits.values() for column in split.columns}
    tables, classes = read_request(request, kinds)
    for split, table in tables.items():
        check_table(table, split, target[split].dim)
        watched = table if rounding is None else rounding.watch(table, target.spec.dtype)
        source = request.source(split)
        content = FileContent(source)
        added += fill_split(target, split, watched, source, progress, restart, content, True, classes, again)
    return added


def _fingerprint(path: Path) -> dict[str, Json]:
    if not path.exists():
        raise InvalidInputError(f"no such file: {path}")
    facts = path.stat()
    return {"path": str(path.resolve()), "size": facts.st_size, "mtime_ns": facts.st_mtime_ns}


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


def from_arrays(
    path: AnyPlace, splits: Mapping[str, Arrays], classes: Sequence[str] | None = None, **options: Any
) -> ActivationStore:
    """Write a store from arrays in memory, or from memory maps, which are read block by block.

    A failure leaves nothing behind.

    Args:
        path: where the store goes; nothing may lie there yet.
        splits: for each split a tuple of activations (n, dim) and labels (n,) or None, and if there are any ids (n,)
            and columns, a dictionary of arrays (n,).
        classes: names of the classes, where labels are numbers. Without them the classes are the distinct strings, or
            the numbers up to the largest.
        **options: as for `create`. Rows of float16 are stored as "f2", others as "f4"; dtype="f2" halves the latter.

    Returns:
        The store.

    Raises:
        InvalidInputError: shapes do not fit together, a value is not finite, or a label has no class.
        NotAStoreError: something lies at this path already.

    Examples:
        >>> import numpy as np
        >>> activations = np.eye(4, 8, dtype=np.float16)
        >>> made = actstore.from_arrays("eye.zarr", {"train": (activations, ["ant", "bee", "ant", "bee"])})
        >>> made.classes
        ('ant', 'bee')
    """
    if not isinstance(splits, Mapping):
        raise InvalidInputError(
            f"splits must be a dictionary such as {{'train': (activations, labels)}}, got {type(splits).__name__}"
        )
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
            remove_own(place)  # what others have put there stays
            if existed and place.local_path is not None:
                place.local_path.mkdir(exist_ok=True)
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


def synthesize(
    store: AnyPlace, rows: int = 100_000, dim: int = 2048, classes: int = 1000, *, seed: int = 0,
    shuffled: bool = False, split: str = "train", restart: bool = False, progress: SplitProgress | None = None,
    **layout: Any,
) -> ActivationStore:  # fmt: skip
    """Generate a store of rows that resemble the activations of a ResNet-50, block by block.

    An interrupted call goes on when it is repeated.

    Args:
        store: where the store goes.
        rows: how many rows.
        dim: number of values in a row.
        classes: how many classes.
        seed: of the random numbers.
        shuffled: put the labels into random order instead of class after class.
        split: name of the split.
        restart: drop the rows of an interrupted call.
        progress: is called with the split, how many of its rows are done and how many it has.
        **layout: `dtype`, `chunk_rows` and `codec`; see `create`.

    Returns:
        The store.

    Examples:
        >>> made = actstore.synthesize("generated.zarr", rows=100, dim=32, classes=5)
        >>> made["train"].shape
        (100, 32)
    """
    spec = SyntheticSpec(rows, dim, classes, seed, shuffled)
    table, provenance = spec.table(), {"source": f"synthetic, seed {seed}"}
    target = open_or_create(store, {split: table}, spec.class_names(), provenance=provenance, **layout)
    fill_split(target, split, table, spec.source(), progress, restart)
    return target

"""From a source of rows to a finished split; interrupted at any moment, it goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actstore.creation import class_names, create, remove_store
from actstore.errors import ActstoreError, InvalidInputError, LockedError, NotAStoreError
from actstore.layout.ledger import open_ledger, read_ledger
from actstore.layout.metadata import ACTIVATIONS
from actstore.layout.own_files import strangers
from actstore.layout.source_history import CONTENT, FileContent, find_source
from actstore.spec import ColumnKind, Json, SplitSpec
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, open
from actstore.tables.array_files import open_tables, read_column
from actstore.tables.column_files import read_columns
from actstore.tables.containers import as_text
from actstore.tables.rounding import Rounding, natural_dtype
from actstore.tables.row_source import Table
from actstore.writing.pending_rows import Pending
from actstore.writing.row_checks import plain_labels
from actstore.writing.split_writer import SplitWriter

Progress = Callable[[str, int, int], None]  # split, rows done, rows in all


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
    """Tables by split, with labels, ids and columns of their own files where those were given.

    kinds: the types that columns have in the store; cells of a csv are read as those.
    """
    known, own = kinds or {}, request.column if request.columns is None else ()
    tables, classes = open_tables(request.path, request.array, request.split, own, known)
    if request.classes is not None:
        classes = as_text(read_column(request.classes, "classes"))
    if request.labels is None and request.ids is None and request.columns is None:
        return tables, classes
    if len(tables) != 1:
        raise InvalidInputError(
            f"{request.path} holds the splits {', '.join(tables)}; choose one with --array to give it labels, ids or "
            "columns"
        )
    ((split, table),) = tables.items()
    labels = table.labels if request.labels is None else read_column(request.labels, "labels")
    ids = table.ids if request.ids is None else as_text(read_column(request.ids, "ids"))
    columns = dict(table.columns)
    if request.columns is not None:
        columns |= read_columns(request.columns, request.column, ids, known)
    return {split: Table(table.activations, labels, ids, columns)}, classes


def import_file(
    request: ImportRequest,
    store: AnyPlace,
    progress: Progress | None = None,
    restart: bool = False,
    rounding: Rounding | None = None,
    **options: Any,
) -> ActivationStore:
    """Make or extend a store by the splits of a file; finished splits of the same file are left alone.

    A new store takes the type of the rows, see `natural_dtype`. rounding: is told what the store's type cost.
    """
    tables, classes = read_request(request)
    target = open_or_create(store, tables, classes, provenance={"source": str(request.path)}, **options)
    tables = tables if rounding is None else rounding.watch(tables, target.spec.dtype)
    for split, table in tables.items():
        source = request.source(split)
        fill_new_split(target, split, table, source, progress, restart, FileContent(source))
    return target


def append_file(
    request: ImportRequest,
    store: AnyPlace,
    progress: Progress | None = None,
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
    tables = tables if rounding is None else rounding.watch(tables, target.spec.dtype)
    for split, table in tables.items():
        check_table(table, split, target[split].dim)
        source = request.source(split)
        content, before = FileContent(source), target[split].committed
        while again or find_source(before.sources, source, content) is None:
            _add_classes(target, table, classes)
            gained = fill_split(target, split, table, source, progress, restart, content, before.content)
            if gained is not None:
                added += gained
                break
            before = target[split].committed  # which may have this source by now
        else:
            target.remove_leftovers(split)
    return added


def fill_new_split(
    store: ActivationStore,
    split: str,
    table: Table,
    source: Mapping[str, Json],
    progress: Progress | None = None,
    restart: bool = False,
    content: FileContent | None = None,
) -> None:
    """Fill a split that is new or unfinished; one that this very source has filled is left alone."""
    while (done := store.splits.get(split)) is None or not done.complete:
        before = (done or SplitSpec()).content
        if fill_split(store, split, table, source, progress, restart, content, before) is not None:
            return
    if find_source(done.sources, source, content) is None:
        raise InvalidInputError(
            f"{store.path} has a finished split {split!r} of another origin; add rows with `actstore append`, "
            "or choose another --split or store"
        )
    else:
        store.remove_leftovers(split)


def fill_split(
    store: ActivationStore,
    split: str,
    table: Table,
    source: Mapping[str, Json],
    progress: Progress | None = None,
    restart: bool = False,
    content: FileContent | None = None,
    before: str | None = None,
) -> int | None:
    """Append every row of a table that is not yet on disk, and commit; returns the rows that the split gains.

    before: the content of the split that the caller has looked at. Where others have committed since, nothing is
    written, and the answer is None: what was decided has to be decided again.
    """
    done = store.splits.get(split)
    check_table(table, split, store.dim if done is None else store.spec.of_split(done).dim)
    with store.writer(split, source=source, restart=restart) as writer, ExitStack() as stack:
        if before is not None and writer.committed.content != before:
            writer.discard()
            return None
        if content is not None:
            content.begin()
            stack.callback(content.stop)
        try:
            append_rest(writer, split, table, progress)
        except InvalidInputError:  # what was mended is another source, which does not go on from here
            with suppress(ActstoreError, OSError):  # what refused the rows is raised
                writer.discard()
            raise
        facts: dict[str, Json] = {} if content is None else {CONTENT: content()}
        return writer.commit(**facts).rows - writer.committed.rows


def append_rest(writer: SplitWriter, split: str, table: Table, progress: Progress | None) -> None:
    """The rows of a table from where the writer stands, block by block."""
    rows = table.activations
    position = writer.position - writer.committed.rows
    for block in rows.blocks(position, rows.shape[0]):
        part = slice(position, position + len(block))
        writer.append(
            block,
            None if table.labels is None else table.labels[part],
            None if table.ids is None else table.ids[part],
            {name: column.part(part.start, part.stop) for name, column in table.columns.items()},
        )
        position = part.stop
        if progress is not None:
            progress(split, position, rows.shape[0])


def check_table(table: Table, split: str, dim: int) -> None:
    count, width = table.activations.shape
    if width != dim:
        raise InvalidInputError(f"split {split!r} has rows of dim {width}, the store has dim {dim}")
    columns = {f"values of column {name!r}": column for name, column in table.columns.items()}
    for what, values in {"labels": table.labels, "ids": table.ids, **columns}.items():
        if values is not None and len(values) != count:
            raise InvalidInputError(f"split {split!r} has {count} rows but {len(values)} {what}")


def open_or_create(
    place: AnyPlace, tables: Mapping[str, Table], classes: Sequence[str] | None, **options: Any
) -> ActivationStore:
    """The store at a path, or a new one shaped by the tables it will hold."""
    path = parse_place(place)
    dims = {table.activations.shape[1] for table in tables.values()}
    if len(dims) != 1:
        raise InvalidInputError(f"all splits of a store have one dim; these have {sorted(dims)}")
    for split, table in tables.items():
        check_table(table, split, *dims)
    while True:
        is_there = (path / "zarr.json").exists()
        try:
            return _open_or_create(path, tables, classes, *dims, **options)
        except (NotAStoreError, InvalidInputError, FileNotFoundError):
            if (path / "zarr.json").exists() == is_there:
                raise  # else another process has made it, or discarded an empty one, just now


def _open_or_create(
    path: Place, tables: Mapping[str, Table], classes: Sequence[str] | None, dim: int, **options: Any
) -> ActivationStore:
    if (path / "zarr.json").exists() and _holds_nothing(open(path)):
        _discard_empty(path)  # what a refused first block leaves: another dtype or class list may come now
    if (path / "zarr.json").exists():
        store = open(path)
        for table in tables.values():
            _add_classes(store, table, classes)
        return store
    names = class_names([table.labels for table in tables.values()]) if classes is None else classes
    options["dtype"] = options.get("dtype") or natural_dtype(tables)
    longest = max(table.activations.shape[0] for table in tables.values())
    return create(path, classes=names, dim=dim, rows=longest, **options)


def _discard_empty(path: Place) -> None:
    """Remove a store without rows, unless somebody has begun to write to it, or has put something else there. In a
    bucket nothing can be locked, so there it stays."""
    if path.local_path is None or strangers(path.local_path):
        return
    with suppress(LockedError), ExitStack() as locks:
        locks.enter_context(path.changing())  # no split is begun meanwhile
        for name in open(path).splits:
            locks.callback(open_ledger(path / name / ACTIVATIONS).close)
        if _holds_nothing(open(path)):
            remove_store(path)


def _holds_nothing(store: ActivationStore) -> bool:
    arrays = {store.path / name / ACTIVATIONS: split for name, split in store.splits.items()}
    return not any(
        split.complete or read_ledger(array)[0] or Pending(array).has_kept(0) for array, split in arrays.items()
    )


def _add_classes(store: ActivationStore, table: Table, classes: Sequence[str] | None) -> None:
    """Names come in with the table: its class list, or labels that are names themselves."""
    if classes is not None:
        known = store.classes[: len(classes)]
        if table.labels is not None and table.labels.dtype.kind in "iu" and tuple(classes[: len(known)]) != known:
            raise InvalidInputError(
                "the class list does not begin with the store's own classes, so its numbers mean other classes; "
                "give labels as names, or the store's class list with new names at its end"
            )
        store.add_classes(classes)
    elif table.labels is not None and plain_labels(table.labels).dtype.kind in "UO":
        store.add_classes(class_names([table.labels]))


def _fingerprint(path: Path) -> dict[str, Json]:
    if not path.exists():
        raise InvalidInputError(f"no such file: {path}")
    facts = path.stat()
    return {"path": str(path.resolve()), "size": facts.st_size, "mtime_ns": facts.st_mtime_ns}

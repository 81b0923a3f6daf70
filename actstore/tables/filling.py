"""From a table of rows to a finished split; interrupted at any moment, it goes on where it stopped. A source is known
again by its content, whatever it is called by now."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from actstore.errors import ActstoreError, InvalidInputError, LockedError, NotAStoreError
from actstore.layout.ledger import open_ledger, read_ledger
from actstore.layout.metadata import ACTIVATIONS, remove_own, strangers
from actstore.progress import SplitProgress
from actstore.spec import Json, SplitSpec
from actstore.storage.atomic_file import CRC_BYTES, crc32c
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore, create, open
from actstore.tables.row_source import Table, natural_dtype
from actstore.writing.chunk_writer import Pending
from actstore.writing.row_checks import plain_labels
from actstore.writing.split_writer import SplitWriter

CONTENT = "content"
_FILES = ("labels", "ids", "classes", "columns")
_PIECE = 1 << 16  # bytes


def fill_split(
    store: ActivationStore,
    split: str,
    table: Table,
    source: Mapping[str, Json],
    progress: SplitProgress | None = None,
    restart: bool = False,
    content: FileContent | None = None,
    adds: bool = False,
    classes: Sequence[str] | None = None,
    again: bool = False,
) -> int:
    """Append every row of a table that is not yet on disk, and commit; returns the rows that the split gains.

    A split that this very source has filled gains nothing. adds: one that others have filled gains the rows, and the
    store these classes; else it is refused. again: also one that has the rows already.
    """
    while True:
        done = store.splits.get(split) or SplitSpec()
        if done.complete and not again and has_source(done.sources, source, content):
            store.remove_leftovers(split)
            return 0
        if done.complete and not adds:
            raise InvalidInputError(
                f"{store.path} has a finished split {split!r} of another origin; add rows with `actstore append`, "
                "or choose another --split or store"
            )
        check_table(table, split, store.spec.of_split(done).dim)
        if adds:
            add_table_classes(store, table, classes)
        with store.writer(split, source=source, restart=restart) as writer, ExitStack() as stack:
            if writer.committed.content != done.content:  # others have committed since: what was decided may be wrong
                writer.discard()
                continue
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


def append_rest(writer: SplitWriter, split: str, table: Table, progress: SplitProgress | None) -> None:
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
            add_table_classes(store, table, classes)
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
            remove_own(path)


def _holds_nothing(store: ActivationStore) -> bool:
    arrays = {store.path / name / ACTIVATIONS: split for name, split in store.splits.items()}
    return not any(
        split.complete or read_ledger(array)[0] or Pending(array).has_kept(0) for array, split in arrays.items()
    )


def add_table_classes(store: ActivationStore, table: Table, classes: Sequence[str] | None) -> None:
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


def class_names(labels: Sequence[NDArray[Any] | None]) -> list[str]:
    """Names for labels that come without any: distinct strings in order, or "0".."n-1"."""
    arrays = [plain_labels(array) for array in labels if array is not None and array.size]
    if not arrays:
        return []
    if arrays[0].dtype.kind in "UO":
        return sorted({str(name) for array in arrays for name in array.tolist()} - {""})
    if any(array.dtype.kind not in "iu" for array in arrays):
        raise InvalidInputError(f"labels must be whole numbers or class names, got type {arrays[0].dtype}")
    count = max(int(array.max()) for array in arrays) + 1
    if count > max(100_000, 10 * sum(len(array) for array in arrays)):
        raise InvalidInputError(f"the largest label is {count - 1}, far beyond the number of rows; give class names")
    return [str(label) for label in range(count)]


def has_source(
    sources: Sequence[Mapping[str, Json]], source: Mapping[str, Json], content: Callable[[], str] | None
) -> bool:
    """Whether an earlier source gave the same rows. content: of the new one, asked for where sizes are the same.

    Sources without a content (generated rows, or stores of older versions) are compared by what they say of themselves.
    """

    def is_same(before: Mapping[str, Json]) -> bool:
        if content is not None and CONTENT in before:
            return _sizes(before) == _sizes(source) and before[CONTENT] == content()
        return {key: value for key, value in before.items() if key not in ("rows", CONTENT)} == dict(source)

    return any(map(is_same, sources))


def _sizes(source: Mapping[str, Json]) -> list[Json]:
    return [source.get("size"), *(source.get(name, {}).get("size") for name in _FILES), source.get("column")]


class FileContent:
    """Names the rows that a source of kind "file" gives: its bytes, those of the files beside it, and which array.

    sha256 over the crc32c of every 64 KiB: several times the rate of an import, where sha256 of all bytes (0.5 GB/s)
    would halve it. `begin` reads the files on a thread of its own, side by side with the import.
    """

    def __init__(self, source: Mapping[str, Json]) -> None:
        self._source = source
        self._stopped = threading.Event()
        self._reading: Future[str] | None = None

    def begin(self) -> None:
        if self._reading is None:
            pool = ThreadPoolExecutor(1, "actstore-content")
            self._reading = pool.submit(self._read)
            pool.shutdown(wait=False)

    def stop(self) -> None:
        self._stopped.set()

    def __call__(self) -> str:
        self.begin()
        assert self._reading is not None
        return self._reading.result()

    def _read(self) -> str:
        source, digest = self._source, hashlib.sha256()
        parts = {name: source[name]["path"] for name in _FILES if name in source}
        features = [source["column"]] if "column" in source else []
        digest.update(json.dumps([source["array"], source["split"], sorted(parts), *features]).encode())
        for path in (source["path"], *parts.values()):
            with Path(path).open("rb") as file:
                while not self._stopped.is_set() and (piece := file.read(_PIECE)):
                    digest.update(crc32c(piece).to_bytes(CRC_BYTES, "little"))
            digest.update(b"end")
        return "sha256:" + digest.hexdigest()

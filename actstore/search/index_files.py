"""What searches keep beside a store: STORE.search/SPLIT/NAME.json and the file of data that it names.

A folder of its own: a Zarr reader warns about strangers inside of a store. NAME.json holds the content hash of
the split, so nothing is ever used with other rows than those it was made of, wherever both are moved to; it is written
last. The history of the split says which rows an earlier content stands for: after an append, the first ones.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from actstore.errors import (
    ActstoreError,
    DamagedError,
    InvalidInputError,
    NotAStoreError,
    OtherVersionError,
    ReplacedError,
    StorageError,
    reason_of,
)
from actstore.layout.metadata import covers, read_split_spec
from actstore.spec import Json, SplitSpec, is_unicode
from actstore.storage.atomic_file import (
    FileLock,
    check_checksum,
    file_checksum,
    is_at,
    storage_errors,
    with_checksum,
    write_atomic,
)

if TYPE_CHECKING:
    from actstore.split import Split


TYPES = {"U8": np.uint8, "F32": np.float32}
_LOCK = ".lock"  # held for a moment by whoever publishes or removes
T = TypeVar("T")
_VERSIONS = {"bounded": 3}  # of what the data file holds, where it is not 1


class Kept(NamedTuple):
    """What was published: its data file, its settings, and how many of the split's rows it covers, the first ones."""

    data: Path
    settings: dict[str, Any]
    rows: int


def folder(split: Split) -> Path:
    return split.store_path.side_folder("search") / split.name


def publish(
    split: Split, name: str, suffix: str, settings: Mapping[str, Json], write: Callable[[Path], object]
) -> Path:
    """Let `write` make the data under a name that is locked meanwhile, then give it one that says what it holds, and at
    last write the JSON that names it. What others have open is never written to.

    ReplacedError, and nothing is kept, where the split was replaced since it was opened, or where what is published
    by now covers more of its rows.
    """
    description = {"content": split.content, "version": _version(name), "settings": dict(settings)}
    note = folder(split) / f"{name}.json"
    partial = note.with_name(f".{name}.part")
    if not is_unicode(str(partial)):  # safetensors opens no such file
        raise StorageError(f"cannot write {note}: its path is not valid Unicode text; rename the store or its folder")
    with storage_errors(note), FileLock(partial, named=note) as own:
        if not own.is_held:  # this file system cannot lock: a name that no other process takes
            partial = note.with_name(f".{name}.{uuid.uuid4().hex}.part")
        try:
            with _disk_errors():
                write(partial)
            facts = {"bytes": partial.stat().st_size, "crc": file_checksum(partial), **description}
            digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
            target = note.with_name(f"{name}.{digest}{suffix}")
            with FileLock(folder(split) / _LOCK):
                _require_newest(split, name)
                partial.replace(target)
                write_atomic(note, json.dumps(with_checksum({"file": target.name, **facts}), indent=2).encode())
                for old in _data_files(split, name):
                    if old != target:
                        old.unlink(missing_ok=True)
        finally:
            # else it has its name, and another may have begun to write this one
            if not own.is_held or is_at(own.descriptor, partial):
                partial.unlink(missing_ok=True)
    return target


def building(split: Split, name: str) -> FileLock:
    """Held while an index is looked at, made or extended, and published: of two that do so at once, one is refused."""
    where = f"index {name} of split {split.name!r} of {split.store_path}"
    return FileLock(
        folder(split) / f".{name}.lock", f"another process is building {where}; wait for it to end, or stop it"
    )


def _require_newest(split: Split, name: str) -> None:
    """What a reader of old rows made must not take the place of what covers the new ones."""
    now = read_split_spec(split.path)
    if not covers(now, split.committed):
        raise ReplacedError(f"{split.path} was replaced since it was opened; open it again")
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # of no note, or one that is damaged
        kept = _read_note(folder(split) / f"{name}.json")
        rows = _rows_of(now, kept["content"]) or 0
        if kept.get("version", 1) == _version(name) and rows > len(split):
            raise ReplacedError(
                f"index {name} of {split.path} covers {rows:,} rows by now, and this one {len(split):,}; "
                "open the split again"
            )


def _data_files(split: Split, name: str) -> list[Path]:
    """Every file of data that was ever published under this name and is still there."""
    pattern = re.compile(rf"{re.escape(name)}\.[0-9a-f]{{12}}\.(safetensors|faiss)(\.part)?")
    return [path for path in folder(split).glob(f"{name}.*") if pattern.fullmatch(path.name)]


@contextmanager
def _disk_errors() -> Iterator[None]:
    """What safetensors and faiss raise where the disk refuses, as the error of the system that it is."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        is_full = os.strerror(errno.ENOSPC) in str(error)
        raise OSError(errno.ENOSPC if is_full else errno.EIO, reason_of(error)) from error


def _version(name: str) -> int:
    return _VERSIONS.get(name, 1)


def find(split: Split, name: str, checked: bool = True) -> Kept | None:
    """What was published for these rows, or for the first of them before an append; None where there is nothing.

    What belongs to other content or another version, or is not what was written, is refused by name; checked: also
    by its checksum.
    """
    note = folder(split) / f"{name}.json"
    rebuild = f"rebuild it with `actstore index {split.store_path} --split {split.name} --kind {name}`"
    document: dict[str, Any] | None = None
    while True:
        before, document = document, None
        try:
            document = _read_note(note)
            content, settings, data = document["content"], document["settings"], note.with_name(document["file"])
            complete = data.stat().st_size == document["bytes"]
            is_damaged = checked and complete and document.get("crc") not in (None, file_checksum(data))
        except FileNotFoundError:
            if document is None:
                return None
            if document == before:
                raise DamagedError(f"{note} names a file that is gone; {rebuild}") from None
            continue  # another may have been published since the note was read
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{note} is damaged ({error}); {rebuild}") from error
        except OSError as error:
            raise StorageError(f"cannot read {error.filename or note}: {reason_of(error)}") from error
        rows = _rows_of(split.committed, content)
        if rows is None:
            raise InvalidInputError(
                f"index {name} in {note.parent} was built for other rows ({content[:19]}…) than split {split.name!r} "
                f"of {split.store_path} holds now ({split.content[:19]}…); {rebuild}"
            )
        if (version := document.get("version", 1)) != _version(name):
            raise OtherVersionError(
                f"index {name} in {note.parent} was built by another version of actstore (its format is {version}, "
                f"this one reads {_version(name)}); {rebuild}"
            )
        if not complete:
            raise DamagedError(f"{data} is truncated; {rebuild}")
        if is_damaged:
            raise DamagedError(f"{data} is damaged: its checksum is not the one in {note.name}; {rebuild}")
        return Kept(data, settings, rows)


def _read_note(note: Path) -> dict[str, Any]:
    """ValueError where it is not what was written."""
    return check_checksum(json.loads(note.read_bytes()))


def find_loaded(split: Split, name: str, load: Callable[[Path], T]) -> tuple[Kept, T] | None:
    """As `find`, with what `load` makes of the data; again where it was replaced before it could be opened."""
    while (kept := find(split, name)) is not None:
        try:
            return kept, load(kept.data)
        except (ActstoreError, RuntimeError, OSError):
            if kept.data.exists():
                raise
    return None


def _rows_of(split: SplitSpec, content: str) -> int | None:
    """How many rows a content stands for, now or before an append; None where it never was this split's."""
    if content == split.content:
        return split.rows
    return next((rows for rows, earlier in split.history if earlier == content and rows <= split.rows), None)


def _notes(split: Split) -> list[Path]:
    """What says what is kept; a folder that may not be listed stands for all that is in it."""
    try:
        return sorted(folder(split).glob("*.json"))
    except PermissionError:
        return [folder(split) / "all.json"]


def damaged(split: Split) -> Iterator[tuple[str, DamagedError | StorageError]]:
    """(name, what is wrong) of all that is kept beside a split and is not what was written, or cannot be read; what is
    merely of other rows is no damage."""
    for note in _notes(split):
        try:
            find(split, note.stem)
        except InvalidInputError:
            pass
        except (DamagedError, StorageError) as error:
            yield note.stem, error


def remarks(split: Split) -> Iterator[tuple[str, str]]:
    """(name, what one should know) of the indexes beside a split that do not cover all of its rows, or none."""
    for note in _notes(split):
        if (name := note.stem) == "norms":
            continue
        try:
            kept = find(split, name, checked=False)
        except InvalidInputError as error:
            yield name, f"{error}; until then no search uses it"
            continue
        except (DamagedError, StorageError) as error:
            yield name, str(error)
            continue
        if kept is not None and kept.rows < len(split):
            yield (
                name,
                (
                    f"index {name} covers {kept.rows:,} of {len(split):,} rows, and the others are searched exactly; "
                    f"`actstore index {split.store_path} --split {split.name} --kind {name}` extends it"
                ),
            )


def remove(split: Split, name: str) -> None:
    with FileLock(folder(split) / _LOCK):
        for file in (folder(split) / f"{name}.json", *_data_files(split, name)):
            file.unlink(missing_ok=True)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, mapped: read from disk when they are used."""
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise DamagedError(f"{path} is damaged ({error}); build the index again") from error


def load_cached(split: Split, name: str) -> dict[str, Tensor] | None:
    """A cache that may be missing, stale or damaged: then None. After an append it covers the first rows only."""
    with suppress(DamagedError, InvalidInputError, OSError):
        found = find_loaded(split, name, load_tensors)
        return None if found is None else found[1]
    return None


def save_cached(split: Split, name: str, tensors: dict[str, Tensor]) -> None:
    """On a read-only disk nothing is kept, and nothing where that of more rows is kept by now."""
    with suppress(StorageError, ReplacedError, NotAStoreError):
        # written like any other file: safetensors' own lets nobody else read it
        publish(split, name, ".safetensors", {}, lambda path: path.write_bytes(save(tensors)))


def create_tensors(path: Path, shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, NDArray[Any]]:
    """A safetensors file of zeros to be filled through the arrays returned: name -> (U8 or F32, shape)."""
    header: dict[str, Json] = {}
    end = 0
    for name, (kind, shape) in shapes.items():
        begin, end = end, end + int(np.prod(shape)) * np.dtype(TYPES[kind]).itemsize
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # the data begins at a multiple of 64 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
        file.flush()
        if hasattr(
            os, "posix_fallocate"
        ):  # a full disk is an error here; later, in the mapped file, it would be a kill
            os.posix_fallocate(file.fileno(), 0, 8 + len(text) + end)
    made: dict[str, NDArray[Any]] = {}
    for name, (kind, shape) in shapes.items():
        offset = 8 + len(text) + header[name]["data_offsets"][0]
        made[name] = np.memmap(path, TYPES[kind], "r+", offset, shape)
    return made

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from actstore.errors import DamagedError, InvalidInputError, OtherVersionError, StorageError, reason_of
from actstore.spec import Json, is_unicode
from actstore.storage.atomic_file import storage_errors, write_atomic
from actstore.storage.checksum import file_checksum, sealed, unsealed

if TYPE_CHECKING:
    from actstore.split import Split

TYPES = {"U8": np.uint8, "F32": np.float32}
_VERSIONS = {"bounded": 3}  # of what the data file holds, where it is not 1


class Kept(NamedTuple):
    """What was published: its data file, its settings, and how many of the split's rows it covers, the first ones."""

    data: Path
    settings: dict[str, Any]
    rows: int


def folder(split: Split) -> Path:
    return split.store_path.side_folder("search") / split.name


def publish(split: Split, name: str, suffix: str, settings: Mapping[str, Json], write: Callable[[Path], object]) -> Path:
    """Let `write` make the data under a temporary name, then give it its own, and at last the JSON that names it."""
    description = {"content": split.content, "version": _version(name), "settings": dict(settings)}
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:12]
    target = folder(split) / f"{name}.{digest}{suffix}"
    partial = target.with_name(target.name + ".part")
    if not is_unicode(str(target)):  # safetensors opens no such file
        raise StorageError(f"cannot write {target}: its path is not valid Unicode text; rename the store or its folder")
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _disk_errors():
                write(partial)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        document = {"file": target.name, "bytes": target.stat().st_size, "crc": file_checksum(target), **description}
        write_atomic(folder(split) / f"{name}.json", json.dumps(sealed(document), indent=2).encode())
        for old in folder(split).glob(f"{name}.*{suffix}"):
            if old != target:
                old.unlink(missing_ok=True)
    return target


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
    try:
        document = unsealed(json.loads(note.read_bytes()))
        content, settings, data = document["content"], document["settings"], note.with_name(document["file"])
        complete = data.stat().st_size == document["bytes"]
    except FileNotFoundError:
        if note.exists():
            raise DamagedError(f"{note} names a file that is gone; {rebuild}") from None
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{note} is damaged ({error}); {rebuild}") from error
    except OSError as error:
        raise StorageError(f"cannot read {note}: {reason_of(error)}") from error
    rows = _rows_of(split, content)
    if rows is None:
        raise InvalidInputError(
            f"index {name} in {note.parent} was built for other rows ({content[:19]}…) than split {split.name!r} of "
            f"{split.store_path} holds now ({split.content[:19]}…); {rebuild}"
        )
    if (version := document.get("version", 1)) != _version(name):
        raise OtherVersionError(
            f"index {name} in {note.parent} was built by another version of actstore (its format is {version}, "
            f"this one reads {_version(name)}); {rebuild}"
        )
    if not complete:
        raise DamagedError(f"{data} is truncated; {rebuild}")
    try:
        if checked and (found := document.get("crc")) is not None and found != file_checksum(data):
            raise DamagedError(f"{data} is damaged: its checksum is not the one in {note.name}; {rebuild}")
    except OSError as error:
        raise StorageError(f"cannot read {data}: {reason_of(error)}") from error
    return Kept(data, settings, rows)


def _rows_of(split: Split, content: str) -> int | None:
    """How many rows a content stands for, now or before an append; None where it never was this split's."""
    if content == split.content:
        return len(split)
    return next((rows for rows, earlier in split.committed.history if earlier == content and rows <= len(split)), None)


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
    for file in folder(split).glob(f"{name}.*"):
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
        found = find(split, name)
        return None if found is None else load_tensors(found.data)
    return None


def save_cached(split: Split, name: str, tensors: dict[str, Tensor]) -> None:
    """On a read-only disk nothing is kept."""
    with suppress(StorageError):
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

"""Bytes of files: their crc32c; the one lock of this library; durable writes, after which a file is whole under its
name or not there; JSON that holds its own checksum; headers of .npy files, of which small ones are read whole, never a
pickle."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import math
import os
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self, cast

import numpy as np
from awscrt import checksums
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from actstore.errors import DamagedError, InvalidInputError, LockedError, StorageError

CRC_BYTES = 4
Data = bytes | bytearray | memoryview | NDArray[Any]


FIELD = "checksum"
BLOCK_BYTES = 1 << 20  # read for a checksum at a time: in the cache, and other threads wait for no more


def as_bytes(data: Data) -> NDArray[np.uint8]:
    """The memory of contiguous data as bytes, without a copy."""
    return np.frombuffer(data, np.uint8)


def as_utf8(text: str) -> bytes:
    """Bytes of a file's name that are no UTF-8 become escapes, which JSON reads back as they were."""
    return text.encode("utf-8", "backslashreplace")


def crc32c(data: Data) -> int:
    return extend_crc32c(0, data)


def extend_crc32c(crc: int, data: Data) -> int:
    """The crc of what `crc` covers followed by `data`."""
    return cast(int, checksums.crc32c(as_bytes(data), crc))


def chunk_parts(values: Data, crc: int) -> tuple[Data, Data]:
    """A chunk file: the bytes of its values, then their crc32c, as Zarr's codec pair `bytes` + `crc32c` makes one."""
    return values, crc.to_bytes(CRC_BYTES, "little")


def document_checksum(document: Any) -> str:
    """crc32c of JSON, whatever spaces and escapes it was written with; hex."""
    return f"{crc32c(json.dumps(document, indent=2, ensure_ascii=False).encode('utf-8', 'surrogatepass')):08x}"


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its checksum in it."""
    plain = {key: value for key, value in document.items() if key != FIELD}
    return {**plain, FIELD: document_checksum(plain)}


def check_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document without its checksum; ValueError where that is another one's."""
    plain = {key: value for key, value in document.items() if key != FIELD}
    if FIELD in document and document[FIELD] != (checksum := document_checksum(plain)):
        raise ValueError(f"its checksum is {checksum}, it says {document[FIELD]}")
    return plain


def require_sound_copy(path: Path) -> None:
    """A JSON file that repeats for people what another file says: damaged, it must not mislead them."""
    try:
        check_checksum(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return
    except (ValueError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged ({error}); remove it: it only repeats what lies beside it") from error


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what a disk says into one line that tells what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        advice = {
            errno.ENOSPC: "the disk is full; free some space and run the same command again, it resumes",
            errno.EDQUOT: "your disk quota is used up; free some space and run the same command again, it resumes",
            errno.EROFS: "the file system is read-only; choose another place",
            errno.EACCES: "permission denied; choose another place or change its permissions",
            errno.EPERM: "permission denied; choose another place or change its permissions",
            errno.EFBIG: "the file system's size limit is reached; choose another place or a smaller chunk",
        }.get(error.errno or 0, error.strerror or str(error))
        raise StorageError(f"cannot write {path}: {advice}") from error


class AtomicFile:
    """A file written under a temporary name; `finish` flushes it to disk and gives it its own name.

    The temporary name is a function of the final one: a write that was killed leaves a file that
    its repetition overwrites, so nothing piles up. That nobody else writes this file is the caller's to see to.
    """

    def __init__(self, path: Path, *parts: Data) -> None:
        self._path, self._partial = path, partial_name(path)
        with self._removed_on_error():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                self.size = sum(write_all(self.descriptor, as_bytes(part).data) for part in parts)
            except BaseException:
                self._close()
                raise

    def finish(self) -> int:
        """Flush the file and give it its name; returns its size."""
        with self._removed_on_error():
            try:
                os.fsync(self.descriptor)
            finally:
                self._close()
            self._partial.replace(self._path)
            sync_directory(self._path.parent)
        return self.size

    def abandon(self) -> None:
        """Leave nothing behind of a file that was not finished; a finished one stays."""
        self._close()
        self._partial.unlink(missing_ok=True)

    def _close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @contextmanager
    def _removed_on_error(self) -> Iterator[None]:
        with storage_errors(self._path):
            try:
                yield
            except OSError:
                self._partial.unlink(missing_ok=True)
                raise


def write_atomic(path: Path, *parts: Data) -> int:
    """Write, flush, rename; of two who write one file at once the later one waits. Returns the bytes written."""
    with FileLock(partial_name(path), named=path):
        return AtomicFile(path, *parts).finish()


@contextmanager
def atomic_stream(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose content takes the file's name in the end, flushed to disk; nothing is left of it on an error."""
    with storage_errors(path), FileLock(partial_name(path), named=path):
        file = AtomicFile(path)
        try:
            with open(file.descriptor, "wb", closefd=False) as stream:
                yield stream
            file.finish()
        except BaseException:
            file.abandon()
            raise


def partial_name(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the file or folder that is open is the one of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class FileLock:
    """Held until it is closed, left as a context, or dropped.

    refusal: what to say where another holds it; without one it is waited for, and a file system that cannot lock goes
    without. must_exist: else a file is made where nothing is. named: in errors, where it is another one that
    is to be written.
    """

    def __init__(
        self, path: Path, refusal: str | None = None, must_exist: bool = False, named: Path | None = None
    ) -> None:
        with storage_errors(named or path):
            self._take(path, refusal, must_exist)
            while not is_at(self.descriptor, path):  # what was locked was renamed or removed meanwhile
                self.close()
                self._take(path, refusal, must_exist)

    def _take(self, path: Path, refusal: str | None, must_exist: bool) -> None:
        if must_exist or path.is_dir():
            self.descriptor = os.open(path, os.O_RDONLY)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        self.is_held = True
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | (0 if refusal is None else fcntl.LOCK_NB))
        except BlockingIOError:
            self.close()
            raise LockedError(refusal) from None
        except OSError:
            if refusal is not None:
                self.close()
                raise
            self.is_held = False

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def npy_bytes(values: NDArray[Any]) -> bytes:
    """An array as the content of a .npy file."""
    out = io.BytesIO()
    np.save(out, values, allow_pickle=False)
    return out.getvalue()


def write_all(descriptor: int, data: memoryview) -> int:
    done = 0
    while done < len(data):  # one write moves at most 2 GiB
        done += os.write(descriptor, data[done:])
    return done


def sync_directory(path: Path) -> None:
    """Make a rename in this directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


ENDS_EARLY = "ends early: it is shorter than its header says; copy it again"


def load_npy(path: Path, what: str) -> NDArray[Any]:
    """The whole of a small .npy file, which is never opened as a pickle. what: the user's word for it."""
    if not path.is_file():
        raise InvalidInputError(f"{path} is {'a folder' if path.is_dir() else 'not there'}; expected {what}")
    with path.open("rb") as stream:
        shape, _, dtype = read_header(stream, str(path))
        if path.stat().st_size - stream.tell() < math.prod(shape) * dtype.itemsize:
            raise InvalidInputError(f"{path} {ENDS_EARLY}")
        stream.seek(0)
        return npy_format.read_array(stream, allow_pickle=False)


def read_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy_format.read_magic(stream)
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInputError(f"{name} is not a numpy array file, or damaged") from error
    if dtype.hasobject:
        raise InvalidInputError(f"{name} holds Python objects, which are never unpickled; save plain numbers or text")
    return shape, fortran, dtype


def file_checksum(path: Path) -> str:
    """crc32c of all bytes of a file; hex."""
    crc, block = 0, memoryview(bytearray(BLOCK_BYTES))  # one block for all: fresh memory costs more than the checksum
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            crc = extend_crc32c(crc, block[:count])
    return f"{crc:08x}"

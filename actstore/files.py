"""Durable writes: a file is either whole under its name, or not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.errors import StorageError

Data = bytes | bytearray | memoryview | NDArray[Any]


def as_bytes(data: Data) -> NDArray[np.uint8]:
    """The memory of contiguous data as bytes, without a copy."""
    return np.frombuffer(data, np.uint8)


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


def write_atomic(path: Path, *parts: Data) -> int:
    """Write the parts under a temporary name, flush to disk, rename. Returns the bytes written.

    The temporary name is a function of the final one: a write that was killed leaves a file that
    its repetition overwrites, so nothing piles up.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part")
        try:
            written = 0
            with partial.open("wb", buffering=0) as file:
                for part in parts:
                    written += _write_all(file.fileno(), as_bytes(part).data)
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    return written


def _write_all(descriptor: int, data: memoryview) -> int:
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

"""Where bytes lie: a folder, a bucket of object storage, a local cache of a bucket; atomic writes, checksums and locks.

Imports `actstore.errors` alone. What others may use is in `__all__`.
"""

from __future__ import annotations

from actstore.storage.atomic_file import FileLock, as_utf8, load_npy, npy_bytes, write_atomic
from actstore.storage.object_path import DEFAULT_LIMIT, CacheSpec, parse_size
from actstore.storage.place import Place, parse_place, stores_in

__all__ = [
    "DEFAULT_LIMIT",
    "CacheSpec",
    "FileLock",
    "Place",
    "as_utf8",
    "load_npy",
    "npy_bytes",
    "parse_place",
    "parse_size",
    "stores_in",
    "write_atomic",
]

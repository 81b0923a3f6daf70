"""Where the chunk files of an array lie."""

from __future__ import annotations

from actstore.storage.place import Place


def chunk_path(array: Place, chunk: int, ndim: int = 2) -> Place:
    """Where Zarr's default key encoding puts chunk number `chunk` along the first axis."""
    path = array / "c" / str(chunk)
    return path / "0" if ndim == 2 else path

"""How the rows of a split are read: mapped where that is possible, else by ranges of bytes, else through Zarr."""

from __future__ import annotations

import warnings
from contextlib import suppress

from actstore.errors import OutOfMapsError
from actstore.reading.cached_rows import CachedRows
from actstore.reading.checked_chunks import ChunkChecks
from actstore.reading.mapped_rows import MappedRows, can_map
from actstore.reading.ranged_rows import RangedRows
from actstore.reading.rows import Rows
from actstore.reading.zarr_rows import ZarrRows
from actstore.spec import SplitSpec, StoreSpec
from actstore.storage.place import Place


def open_rows(array: Place, spec: StoreSpec, rows: int, committed: SplitSpec | None = None) -> Rows:
    """committed: what the caller knows of the split, whose files must be of that moment, or of a later one. Writers,
    who hold the ledger, leave it out."""
    checks = ChunkChecks(array, spec, rows, committed)
    with checks.explained():
        return _open_rows(array, spec, rows, checks)


def _open_rows(array: Place, spec: StoreSpec, rows: int, checks: ChunkChecks) -> Rows:
    chunks = -(-rows // spec.chunk_rows)
    mappable = can_map(spec.chunk_bytes, chunks)
    if array.local_path is not None and spec.is_raw and mappable:
        with suppress(OutOfMapsError):
            return MappedRows(array.local_path, spec, rows, checks)
    if array.local_path is not None:  # of a bucket this would fetch whole chunks
        checks.entries()
        for chunk in filter(checks.was_rewritten, range(chunks)):
            checks.check_file(chunk)
    fetched = (RangedRows if spec.codec == "raw" else ZarrRows)(array, spec, rows, checks)
    if array.cache is None:
        return fetched
    if not mappable:
        warnings.warn(f"chunks of {array} are no whole memory pages, so they are not cached", stacklevel=2)
        return fetched
    try:
        return CachedRows(fetched, array, array.cache, spec, rows, checks)
    except OutOfMapsError:
        return fetched

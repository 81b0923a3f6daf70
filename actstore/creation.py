"""New, empty stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm
from typing import Any

from numpy.typing import NDArray

from actstore.errors import InvalidInputError, NotAStoreError
from actstore.layout.own_files import remove_own
from actstore.layout.zarr_arrays import create_group
from actstore.spec import (
    CONVENTION,
    CONVENTIONS,
    KEY,
    Codec,
    Dtype,
    Json,
    StoreSpec,
    default_chunk_rows,
    remote_inner_rows,
)
from actstore.storage.atomic_file import storage_errors
from actstore.storage.place import AnyPlace, Place, parse_place
from actstore.store import ActivationStore
from actstore.writing.row_checks import plain_labels


def create(
    path: AnyPlace,
    *,
    classes: Sequence[str],
    dim: int,
    dtype: Dtype = "f2",
    chunk_rows: int | None = None,
    codec: Codec = "raw",
    shard_inner_rows: int | None = None,
    provenance: Mapping[str, Json] | None = None,
    rows: int | None = None,
) -> ActivationStore:
    """An empty store at a path where there is nothing yet.

    chunk_rows defaults to about 32 MiB of rows, or to fewer where the longest split will have only so few `rows`.
    codec "raw" can be memory-mapped; "blosc" saves 8-10% on fp16 activations and reads far slower at random.
    shard_inner_rows makes each chunk file a shard of pieces of so many rows, each with a checksum of its own; in a
    bucket that is the default, 0 asks for none.
    """
    place = parse_place(path)
    require_free(place)
    if rows is not None:
        chunk_rows = chunk_rows or default_chunk_rows(dim, dtype, rows)
    if shard_inner_rows is None and codec == "raw" and place.local_path is None:
        shard_inner_rows = remote_inner_rows(dim, dtype)
        # whole pieces, and whole memory pages so that a cache can map chunks
        chunk_rows, page_rows = chunk_rows or default_chunk_rows(dim, dtype), default_chunk_rows(dim, dtype, rows=1)
        unit = shard_inner_rows if chunk_rows % page_rows else lcm(shard_inner_rows, page_rows)
        chunk_rows = -(-chunk_rows // unit) * unit
    spec = StoreSpec(
        classes=tuple(classes),
        dim=dim,
        dtype=dtype,
        chunk_rows=chunk_rows or 0,
        codec=codec,
        shard_inner_rows=shard_inner_rows or None,
        provenance=dict(provenance or {}),
    )
    if place.local_path is not None:
        with storage_errors(place.local_path):
            place.local_path.mkdir(parents=True, exist_ok=True)
    with place.changing():
        require_free(place)  # of two that make a store here at once, one is refused
        create_group(place, {KEY: spec.to_json(), CONVENTIONS: [CONVENTION]})
    return ActivationStore(place, spec)


def require_free(path: Place) -> None:
    if path.has_entries(besides="zarr.json.part"):  # left by a creation that was killed, and written anew
        raise NotAStoreError(f"{path} exists already; choose another path")


def remove_store(path: Place, keep_top: bool = False) -> None:
    """A store that holds nothing, or was given up; what others have put into its folder stays, or the folder alone."""
    if path.local_path is None:
        path.remove_tree()
        return
    remove_own(path.local_path)
    if keep_top:
        path.local_path.mkdir(exist_ok=True)


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

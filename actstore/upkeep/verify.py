"""Check every chunk of a store and name what is wrong: missing, truncated, corrupt, non-finite."""

from __future__ import annotations

import math
import os
from collections.abc import Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from actstore.audit.outcome import damaged as audit_damage
from actstore.compute.cluster import Cluster
from actstore.compute.tensors import first_non_finite_row
from actstore.errors import ActstoreError, DamagedError, StorageError, reason_of
from actstore.layout.columns import expected_document, facts_of, flat_arrays, metadata_difference, read_fact
from actstore.layout.ledger import (
    LEDGER,
    Entry,
    chunk_path,
    content_hash,
    decode_chunk,
    decode_units,
    read_ledger,
    require_size,
)
from actstore.layout.metadata import ACTIVATIONS, read_attributes, read_layout, read_split_spec, read_store_spec
from actstore.progress import Progress
from actstore.search.index_files import damaged
from actstore.spec import KEY, SplitSpec, StoreSpec
from actstore.split import Split
from actstore.statistics import NAMES as STATISTICS
from actstore.storage.atomic_file import CRC_BYTES, crc32c
from actstore.storage.place import Place, read_files
from actstore.store import ActivationStore

Kind = Literal["missing", "truncated", "corrupt", "non-finite", "metadata", "unreadable"]
SEARCH_FILES = "search/"  # what a fault's array begins with where it lies beside the store
AUDIT = "audit"  # a fault's array where the audit kept beside the store is damaged
GROUP = "zarr.json"  # a fault's array where the metadata of the split itself is wrong


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong; `chunk` is -1 where no single chunk is to blame."""

    split: str
    array: str
    chunk: int
    kind: Kind
    detail: str
    file: str = ""

    def __str__(self) -> str:
        chunk = f" chunk {self.chunk}" if self.chunk >= 0 else ""
        file = f"; {self.file}" if self.file not in self.detail else ""
        return f"{self.kind}: {self.split}/{self.array}{chunk} ({self.detail}{file})"


def verify_store(
    store: ActivationStore, progress: Progress | None = None, cluster: Cluster | None = None
) -> list[Fault]:
    """All faults of all splits; an empty list is a healthy store. `progress` gets rows as they are checked.

    cluster: its workers read the chunks of activations.
    """
    splits, faults = readable_splits(store)
    for name, split in splits.items():
        path, spec = store.path / name, store.spec.of_split(split)
        try:
            faults += lasting_faults(path, verify_split(path, spec, split, progress, cluster))
        except PermissionError as error:  # of a folder
            faults.append(Fault(name, GROUP, -1, "unreadable", reason_of(error), str(error.filename)))
        faults += [
            Fault(name, f"{SEARCH_FILES}{kept}", -1, _kind_of(error, "corrupt"), str(error))
            for kept, error in damaged(Split(store.path, name, spec, split))
        ]
    for name in [*splits][:1]:
        faults += [Fault(name, AUDIT, -1, _kind_of(error, "corrupt"), str(error)) for error in audit_damage(store)]
    return faults


def lasting_faults(path: Place, faults: list[Fault]) -> list[Fault]:
    """Those of a split that are still there while nobody commits: what was seen during an append may be none. Looked at
    again are the chunks of rows that were named, and all small arrays."""
    while faults:
        before = _moment(path)
        chunks = {fault.chunk for fault in faults if fault.array == ACTIVATIONS and fault.chunk >= 0}
        try:
            split = read_split_spec(path)
            spec = read_store_spec(path.parent).of_split(split)
            faults = verify_split(path, spec, split, chunks=chunks)
        except ActstoreError as error:
            faults = [Fault(path.name, GROUP, -1, _kind_of(error, "metadata"), str(error), str(path / "zarr.json"))]
        if _moment(path) == before:
            break
    return faults


def _moment(path: Place) -> tuple[bytes | None, ...]:
    """What every commit changes, and what tells that one is under way."""
    array = path / ACTIVATIONS
    found: list[bytes | None] = []
    for file in (path / "zarr.json", array / LEDGER, array / "pending" / "source.json"):
        try:
            found.append(file.read_bytes())
        except (FileNotFoundError, StorageError):  # one that may not be read is a fault already
            found.append(None)
    return tuple(found)


def _kind_of(error: ActstoreError, otherwise: Kind) -> Kind:
    """What may not be read, or not at the moment, need not be damaged."""
    return "unreadable" if isinstance(error, StorageError) else otherwise


def readable_splits(store: ActivationStore) -> tuple[dict[str, SplitSpec], list[Fault]]:
    """The splits whose metadata can be read, and a fault for each of the others, and where it is lost."""
    splits, faults = {}, []
    for entry in store.entries():
        try:
            if not (entry / "zarr.json").exists():
                if (entry / ACTIVATIONS / "c").has_entries():  # else it was never begun: a kill may leave a ledger
                    raise DamagedError(f"{entry / 'zarr.json'} is lost")
            elif KEY in (attributes := read_attributes(entry)):
                splits[entry.name] = SplitSpec.from_json(attributes[KEY], str(entry))
            elif (entry / ACTIVATIONS).has_entries():
                raise DamagedError(f"{entry / 'zarr.json'} holds no {KEY!r} attribute")
        except ActstoreError as error:
            kind = _kind_of(error, "metadata")
            faults.append(Fault(entry.name, GROUP, -1, kind, str(error), str(entry / "zarr.json")))
        except PermissionError as error:
            faults.append(Fault(entry.name, GROUP, -1, "unreadable", reason_of(error), str(entry)))
    return splits, faults


def verify_split(
    path: Place,
    spec: StoreSpec,
    split: SplitSpec,
    progress: Progress | None = None,
    cluster: Cluster | None = None,
    chunks: Container[int] | None = None,
) -> list[Fault]:
    """Faults of one split. chunks: of rows that are looked at; all by default. Beside an append it may find what is
    none, see `lasting_faults`."""
    try:
        entries, _ = read_ledger(path / ACTIVATIONS)
    except ActstoreError as error:
        kind = _kind_of(error, "metadata")
        return [Fault(path.name, "ledger", -1, kind, str(error), str(path / ACTIVATIONS / LEDGER))]
    faults = list(_metadata_faults(path, spec, split, entries))
    check = partial(check_activations, path if cluster is None else path.absolute(), spec)
    some = [entry for entry in entries if chunks is None or entry.chunk in chunks]
    with ThreadPoolExecutor(os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        checked = pool.map(check, some) if cluster is None else cluster.map(f"verify-{path.name}", check, some)
        for fault, entry in zip(checked, some, strict=True):
            faults += [] if fault is None else [fault]
            if progress is not None:
                progress(entry.rows)
    unreadable, flat = {fault.array for fault in faults}, flat_arrays(split)
    for name in flat:
        if name not in unreadable:
            faults += _raw_array_faults(path, name)
    for name in STATISTICS:
        faults += _statistics_faults(path, name)
    if not any(fault.array in flat for fault in faults):
        faults += _fact_faults(path, split)
    return faults


def _statistics_faults(path: Place, name: str) -> list[Fault]:
    """Statistics are none until their metadata is there, after their chunk. What seems a fault may be a replacement
    under way: it is looked at again while there is none."""

    def found() -> list[Fault]:
        return list(_raw_array_faults(path, name)) if (path / name / "zarr.json").exists() else []

    if not found():
        return []
    with path.parent.changing():
        return found()


def _metadata_faults(path: Place, spec: StoreSpec, split: SplitSpec, entries: list[Entry]) -> Iterator[Fault]:
    """What the split says of itself against what is there: rows, shapes, and the hash of the content."""

    def fault(array: str, detail: str, file: Place, kind: Kind = "metadata") -> Fault:
        return Fault(path.name, array, -1, kind, detail, str(file))

    named = sum(entry.rows for entry in entries)
    if named < split.rows:
        yield fault("ledger", f"it names {named} rows, the split has {split.rows}", path / ACTIVATIONS / LEDGER)
    for name in (ACTIVATIONS, *flat_arrays(split)):
        kind: Kind = "metadata"
        try:
            expected = expected_document(name, spec, split)
            difference = metadata_difference(path / name, expected, not split.complete or _is_growing(path))
        except ActstoreError as error:
            difference, kind = str(error), _kind_of(error, kind)
        if difference is not None:
            yield fault(name, difference, path / name / "zarr.json", kind)
    is_other = content_hash(spec.dtype, spec.dim, entries, split) != split.content or named != split.rows
    if is_other and split.complete and not _is_growing(path):
        yield fault(GROUP, f"rows or content hash of the split are not those of its {LEDGER}", path / "zarr.json")


def _fact_faults(path: Place, split: SplitSpec) -> Iterator[Fault]:
    """Labels, ids and columns whose chunks are sound may still be other ones than those committed."""
    for fact in facts_of(split).values():
        name = [*fact.arrays][-1]
        try:
            read_fact(path, fact)
        except ActstoreError as error:
            yield Fault(path.name, name, 0, _kind_of(error, "corrupt"), str(error), str(path / name))


def check_activations(path: Place, spec: StoreSpec, entry: Entry) -> Fault | None:
    """One chunk of activations against its own crc and the ledger's."""
    file = chunk_path(path / ACTIVATIONS, entry.chunk)

    def fault(kind: Kind, detail: str) -> Fault:
        return Fault(path.name, ACTIVATIONS, entry.chunk, kind, detail, str(file))

    try:
        (data,) = read_files([file])
    except StorageError as error:
        if file.local_path is None:  # each chunk in turn would wait for a bucket that cannot be reached
            raise
        return fault("unreadable", str(error))
    if data is None:
        return fault("missing", f"{file} does not exist")
    resized = len(data) != entry.stored
    changed = resized or (entry.file_crc is not None and crc32c(data) != entry.file_crc)
    if changed and (spec.is_raw or not _is_growing(path)):  # an append may have extended the chunk already
        kind: Kind = "truncated" if len(data) < entry.stored else "corrupt"
        what = f"{len(data)} bytes, expected {entry.stored}"
        return fault(kind, what if resized else f"the crc32c of its file is not the ledger's {entry.file_crc:08x}")
    try:
        values = decode_chunk(spec, data)
    except (ValueError, RuntimeError, OSError) as error:
        return fault("corrupt", str(error).splitlines()[0])
    crc = crc32c(values)
    if crc != entry.crc and _is_growing(path):
        values = values.copy()
        values[entry.rows :] = 0
        crc = crc32c(values)
    if crc != entry.crc:
        return fault("corrupt", f"crc32c is {crc:08x}, the ledger says {entry.crc:08x}")
    row = first_non_finite_row(values[: entry.rows])
    if row is not None:
        return fault("non-finite", f"row {entry.chunk * spec.chunk_rows + row} holds a NaN or an infinity")
    return None


def _is_growing(path: Place) -> bool:
    """Whether an append is in flight."""
    return (path / ACTIVATIONS / "pending").has_entries()


def _raw_array_faults(path: Place, name: str) -> Iterator[Fault]:
    """Faults of a small array of raw chunks, each checked against its own crc."""
    try:
        shape, chunk, dtype = read_layout(path / name)
    except ActstoreError as error:
        yield Fault(path.name, name, -1, _kind_of(error, "metadata"), str(error), str(path / name / "zarr.json"))
        return
    size = math.prod(chunk) * dtype.itemsize
    files = [chunk_path(path / name, number, len(shape)) for number in range(-(-shape[0] // chunk[0]))]
    try:
        for number, data in enumerate(read_files(files)):
            if data is None:
                yield Fault(path.name, name, number, "missing", f"{files[number]} does not exist")
                continue
            try:
                require_size(data, size + CRC_BYTES)
                decode_units(data, size)
            except ValueError as error:
                kind: Kind = "truncated" if len(data) < size + CRC_BYTES else "corrupt"
                yield Fault(path.name, name, number, kind, str(error), str(files[number]))
    except StorageError as error:
        yield Fault(path.name, name, -1, "unreadable", str(error))

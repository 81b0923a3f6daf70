"""Check every chunk of a store and name what is wrong: missing, truncated, corrupt, non-finite."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.chunkfile import CRC_BYTES, chunk_path, crc32c
from actstore.errors import ActstoreError
from actstore.hierarchy import ACTIVATIONS, FLAT_ARRAYS, open_array, read_flat
from actstore.ledger import LEDGER, Entry, content_hash, read_ledger
from actstore.spec import SplitSpec, StoreSpec
from actstore.statistics import NAMES as STATISTICS
from actstore.store import ActivationStore
from actstore.tensors import first_non_finite_row

Kind = Literal["missing", "truncated", "corrupt", "non-finite", "metadata"]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong; `chunk` is -1 where no single chunk is to blame."""

    split: str
    array: str
    chunk: int
    kind: Kind
    detail: str

    def __str__(self) -> str:
        chunk = f" chunk {self.chunk}" if self.chunk >= 0 else ""
        return f"{self.kind}: {self.split}/{self.array}{chunk} ({self.detail})"


def verify_store(store: ActivationStore, progress: Progress | None = None) -> list[Fault]:
    """All faults of all splits; an empty list is a healthy store. `progress` gets rows as they are checked."""
    faults = [
        fault
        for name, split in store.splits.items()
        for fault in verify_split(store.path / name, store.spec.of_split(split), split, progress)
    ]
    for ledger in sorted(store.path.glob(f"*/{ACTIVATIONS}/{LEDGER}")):
        split_path = ledger.parents[1]
        if ledger.stat().st_size and not (split_path / "zarr.json").exists():
            faults.append(Fault(split_path.name, "zarr.json", -1, "metadata", f"{split_path / 'zarr.json'} is lost"))
    return faults


def verify_split(path: Path, spec: StoreSpec, split: SplitSpec, progress: Progress | None = None) -> list[Fault]:
    try:
        entries, _ = read_ledger(path / ACTIVATIONS)
    except ActstoreError as error:
        return [Fault(path.name, "ledger", -1, "metadata", str(error))]
    faults = list(_metadata_faults(path, spec, split, entries))

    def check(entry: Entry) -> Fault | None:
        fault = check_activations(path, spec, entry)
        if progress is not None:
            progress(entry.rows)
        return fault

    with ThreadPoolExecutor(os.cpu_count(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        faults += [fault for fault in pool.map(check, entries) if fault is not None]
    for name in (*FLAT_ARRAYS, *STATISTICS):
        if (path / name).exists() or name in FLAT_ARRAYS:
            faults += _raw_array_faults(path, name)
    if not any(fault.array in FLAT_ARRAYS for fault in faults):
        faults += _column_faults(path, split)
    return faults


def _metadata_faults(path: Path, spec: StoreSpec, split: SplitSpec, entries: list[Entry]) -> Iterator[Fault]:
    """What the split says of itself against what is there: rows, shapes, and the hash of the content."""

    def fault(array: str, detail: str) -> Fault:
        return Fault(path.name, array, -1, "metadata", detail)

    named = sum(entry.rows for entry in entries)
    if named < split.rows:
        yield fault("ledger", f"it names {named} rows, the split has {split.rows}")
    try:
        shape = open_array(path / ACTIVATIONS).shape
        if shape[0] < split.rows or shape[1:] != (spec.dim,):
            yield fault(ACTIVATIONS, f"its shape is {shape}, expected ({split.rows}, {spec.dim})")
    except ActstoreError as error:
        yield fault(ACTIVATIONS, str(error))
    if split.complete and not (path / ACTIVATIONS / "pending").exists():
        content = content_hash(spec.dtype, spec.dim, entries, split.labels_crc, split.ids_crc)
        if content != split.content or named != split.rows:
            yield fault("zarr.json", "rows or content hash of the split are not those of its ledger")


def _column_faults(path: Path, split: SplitSpec) -> Iterator[Fault]:
    """Labels and ids whose chunks are sound may still be other ones than those committed."""
    try:
        if crc32c(read_flat(path / "labels", split.rows).astype("<i4")) != split.labels_crc:
            yield Fault(path.name, "labels", 0, "corrupt", "the labels are not those committed")
        if split.has_ids:
            offsets = read_flat(path / "path_offsets", split.rows + 1)
            data = read_flat(path / "path_bytes", split.id_bytes).tobytes()
            lines = b"".join(data[a:b] + b"\n" for a, b in pairwise(offsets.tolist()))
            if crc32c(lines) != split.ids_crc:
                yield Fault(path.name, "path_bytes", 0, "corrupt", "the ids are not those committed")
    except ActstoreError as error:
        yield Fault(path.name, "labels", -1, "metadata", str(error))


def check_activations(path: Path, spec: StoreSpec, entry: Entry) -> Fault | None:
    """One chunk of activations against its own crc and the ledger's."""
    file = chunk_path(path / ACTIVATIONS, entry.chunk)

    def fault(kind: Kind, detail: str) -> Fault:
        return Fault(path.name, ACTIVATIONS, entry.chunk, kind, detail)

    if not file.exists():
        return fault("missing", f"{file} does not exist")
    size = file.stat().st_size
    growing = (path / ACTIVATIONS / "pending").exists()  # an append may have extended the chunk already
    if size != entry.stored and not (growing and not spec.is_raw):
        kind: Kind = "truncated" if size < entry.stored else "corrupt"
        return fault(kind, f"{size} bytes, expected {entry.stored}")
    if entry.file_crc is not None and not growing and crc32c(file.read_bytes()) != entry.file_crc:
        return fault("corrupt", f"the crc32c of its file is not the ledger's {entry.file_crc:08x}")
    try:
        values = _read_values(path / ACTIVATIONS, spec, entry.chunk)
    except (ValueError, RuntimeError, OSError) as error:
        return fault("corrupt", str(error).splitlines()[0])
    crc = crc32c(values)
    if crc != entry.crc and growing:
        values = values.copy()
        values[entry.rows :] = 0
        crc = crc32c(values)
    if crc != entry.crc:
        return fault("corrupt", f"crc32c is {crc:08x}, the ledger says {entry.crc:08x}")
    row = first_non_finite_row(values[: entry.rows])
    if row is not None:
        return fault("non-finite", f"row {entry.chunk * spec.chunk_rows + row} holds a NaN or an infinity")
    return None


def _read_values(array: Path, spec: StoreSpec, chunk: int) -> NDArray[Any]:
    """(chunk_rows, dim), padding included."""
    if spec.is_raw:
        data = np.fromfile(chunk_path(array, chunk), np.uint8)
        _require_own_crc(data)
        return data[:-CRC_BYTES].view("<" + spec.dtype).reshape(spec.chunk_rows, spec.dim)
    values = np.zeros((spec.chunk_rows, spec.dim), "<" + spec.dtype)
    start = chunk * spec.chunk_rows
    stored = np.asarray(open_array(array)[start : start + spec.chunk_rows])
    values[: len(stored)] = stored  # the array may end before its last chunk does; padding is zero
    return values


def _require_own_crc(data: NDArray[np.uint8]) -> None:
    stored = int.from_bytes(data[-CRC_BYTES:].tobytes(), "little")
    computed = crc32c(data[:-CRC_BYTES])
    if stored != computed:
        raise ValueError(f"crc32c is {computed:08x}, the chunk says {stored:08x}")


def _raw_array_faults(path: Path, name: str) -> Iterator[Fault]:
    """Faults of a small array of raw chunks, each checked against its own crc."""
    try:
        array = open_array(path / name)
    except ActstoreError as error:
        yield Fault(path.name, name, -1, "metadata", str(error))
        return
    expected = int(np.prod(array.chunks)) * array.dtype.itemsize + CRC_BYTES
    grid = [range(-(-length // chunk)) for length, chunk in zip(array.shape, array.chunks, strict=True)]
    for index in product(*grid):
        file = (path / name / "c").joinpath(*map(str, index))
        if not file.exists():
            yield Fault(path.name, name, index[0], "missing", f"{file} does not exist")
            continue
        data = np.fromfile(file, np.uint8)
        if len(data) != expected:
            kind: Kind = "truncated" if len(data) < expected else "corrupt"
            yield Fault(path.name, name, index[0], kind, f"{len(data)} bytes, expected {expected}")
            continue
        try:
            _require_own_crc(data)
        except ValueError as error:
            yield Fault(path.name, name, index[0], "corrupt", str(error))

"""Ways to keep (rows, dim) fp16 values on disk: ours, a numpy memmap, and other stores where installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actstore.storage.atomic_file import as_bytes
from actstore.tables.arrays import from_arrays

Values = NDArray[Any]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Contender:
    """write stores the values under a folder; take and scan read them back."""

    name: str
    write: Callable[[Path, Values], None]
    open_take: Callable[[Path], Callable[[Rows], Values]]
    open_scan: Callable[[Path], Callable[[], Iterator[Values]]]


def contenders(peers: bool = True) -> list[Contender]:
    """Ours in three layouts and the memmap; with `peers` also every other store that is installed."""
    ours = [_ours("actstore", {}), _ours("actstore blosc", {"codec": "blosc"}), _sharded()]
    found = [_memmap()]
    if peers:
        found.append(_zarr())
        for module, contender in (("tensorstore", _tensorstore), ("lance", _lance), ("h5py", _h5py)):
            if find_spec(module) is not None:
                found.append(contender())
    return ours + found


def _ours(name: str, layout: dict[str, Any]) -> Contender:
    def opened(folder: Path) -> Any:
        import actstore

        return actstore.open(folder / "store.zarr")["train"]

    def write(folder: Path, values: Values) -> None:
        from_arrays(folder / "store.zarr", {"train": (values, None)}, **layout)

    return Contender(name, write, lambda folder: opened(folder).take, lambda folder: opened(folder).blocks)


def _sharded() -> Contender:
    return _ours("actstore sharded", {"chunk_rows": 8192, "shard_inner_rows": 64})


def _memmap() -> Contender:
    def write(folder: Path, values: Values) -> None:
        import os

        with (folder / "values.bin").open("wb") as file:
            file.write(as_bytes(values).data)
            file.flush()
            os.fsync(file.fileno())
        (folder / "shape.txt").write_text(" ".join(map(str, values.shape)))

    def opened(folder: Path) -> Values:
        shape = tuple(map(int, (folder / "shape.txt").read_text().split()))
        return np.memmap(folder / "values.bin", np.float16, "r", shape=shape)

    return Contender("numpy memmap", write, _taker(opened), _scanner(opened))


def _zarr() -> Contender:
    """zarr-python on the very files of our store."""

    def opened(folder: Path) -> Any:
        from actstore.layout.zarr_arrays import open_array
        from actstore.storage.place import parse_place

        return open_array(parse_place(folder / "store.zarr" / "train" / "activations"))

    def open_take(folder: Path) -> Callable[[Rows], Values]:
        array = opened(folder)
        return lambda rows: np.asarray(array.oindex[rows])

    return Contender("zarr-python", _ours("", {}).write, open_take, _scanner(opened))


def _tensorstore() -> Contender:
    """tensorstore on the very files of our store."""

    def opened(folder: Path) -> Any:
        import tensorstore

        place = str(folder / "store.zarr" / "train" / "activations")
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": place}}
        return tensorstore.open(spec, read=True).result()

    def open_take(folder: Path) -> Callable[[Rows], Values]:
        array = opened(folder)
        return lambda rows: np.asarray(array[rows].read().result())

    def open_scan(folder: Path) -> Callable[[], Iterator[Values]]:
        array = opened(folder)
        count = array.shape[0]  # tensorstore refuses a slice past the end
        return lambda: (np.asarray(array[i : min(i + 8192, count)].read().result()) for i in range(0, count, 8192))

    return Contender("tensorstore", _ours("", {}).write, open_take, open_scan)


def _lance() -> Contender:
    def write(folder: Path, values: Values) -> None:
        import lance
        import pyarrow

        rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.reshape(-1)), values.shape[1])
        lance.write_dataset(pyarrow.table({"activations": rows}), str(folder / "values.lance"))

    def as_values(batch: Any, dim: int) -> Values:
        return np.asarray(batch.flatten().to_numpy(zero_copy_only=False)).reshape(-1, dim)

    def opened(folder: Path) -> tuple[Any, int]:
        import lance

        dataset = lance.dataset(str(folder / "values.lance"))
        return dataset, dataset.schema.field("activations").type.list_size

    def open_take(folder: Path) -> Callable[[Rows], Values]:
        dataset, dim = opened(folder)
        return lambda rows: as_values(dataset.take(rows.tolist()).column(0).combine_chunks(), dim)

    def open_scan(folder: Path) -> Callable[[], Iterator[Values]]:
        dataset, dim = opened(folder)
        return lambda: (as_values(batch.column(0), dim) for batch in dataset.to_batches(batch_size=8192))

    return Contender("Lance", write, open_take, open_scan)


def _h5py() -> Contender:
    def write(folder: Path, values: Values) -> None:
        import h5py

        with h5py.File(folder / "values.h5", "w") as file:
            file.create_dataset("activations", data=values, chunks=(64, values.shape[1]))

    def opened(folder: Path) -> Any:
        import h5py

        return h5py.File(folder / "values.h5", "r")["activations"]

    def open_take(folder: Path) -> Callable[[Rows], Values]:
        data = opened(folder)

        def take(rows: Rows) -> Values:  # h5py wants ascending, distinct rows
            wanted, back = np.unique(rows, return_inverse=True)
            return np.asarray(data[wanted])[back]

        return take

    return Contender("h5py", write, open_take, _scanner(opened))


def _taker(opened: Callable[[Path], Any]) -> Callable[[Path], Callable[[Rows], Values]]:
    def open_take(folder: Path) -> Callable[[Rows], Values]:
        values = opened(folder)
        return lambda rows: np.asarray(values[rows])

    return open_take


def _scanner(opened: Callable[[Path], Any]) -> Callable[[Path], Callable[[], Iterator[Values]]]:
    def open_scan(folder: Path) -> Callable[[], Iterator[Values]]:
        values = opened(folder)
        return lambda: (values[i : i + 8192] for i in range(0, values.shape[0], 8192))

    return open_scan

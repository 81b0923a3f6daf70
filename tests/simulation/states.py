"""Stores as commands find them: made once for each process, then copied for every order that is tried."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

import actstore
from actstore.search.bounded import BoundedSearch
from actstore.search.indexing import build_index
from actstore.storage.bucket_client import bucket_of
from actstore.tables.importing import ImportRequest, append_file, import_file
from tests.simulation.machine import small_and_timeless
from tests.simulation.rows import CLASSES, Rows, make_rows

CHUNK = 32  # rows: one page of memory
BUCKET = "memory://simulation"
STORE = "store.zarr"


@dataclass
class State:
    """A store before the commands, in files or objects, and what is in it."""

    splits: dict[str, Rows] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)  # by name, relative to the folder that holds the store
    others: dict[str, Rows] = field(default_factory=dict)  # splits of another store, which may take its place
    own: tuple[str, ...] = ()  # files of a user, which no command may touch
    is_damaged: bool = False


class World:
    """Where one order is tried: a folder that commands share, and the store in it or in a bucket."""

    def __init__(self, folder: Path, sources: Path, in_bucket: bool) -> None:
        self.folder, self.sources, self.in_bucket = folder, sources, in_bucket

    @property
    def store(self) -> str:
        return self.place(STORE)

    def place(self, name: str) -> str:
        return f"{BUCKET}/{name}" if self.in_bucket else str(self.folder / name)

    def copied(self, name: str) -> Path:
        """Where a copy goes that is no part of the simulation: its writes are no stops."""
        return self.folder.with_name("copied") / name

    def fill(self, state: State) -> None:
        self.clear()
        (self.folder / "cache").mkdir(parents=True)
        self.copied("x").parent.mkdir()
        made = set()
        for name, data in state.files.items():
            if self.in_bucket:
                import obstore

                obstore.put(bucket_of(BUCKET), name, data)
                continue
            path = f"{self.folder}/{name}"
            if (folder := path.rpartition("/")[0]) not in made:
                Path(folder).mkdir(parents=True, exist_ok=True)
                made.add(folder)
            with open(path, "wb", buffering=0) as file:  # noqa: PTH123 - thousands a second
                file.write(data)

    def digest(self) -> bytes:
        """Of the names and bytes of everything that is there."""
        hashed = blake2b()
        for name, data in sorted(self._everything()):
            hashed.update(f"{name}\0{len(data)}\0".encode("utf-8", "surrogateescape"))
            hashed.update(data)
        return hashed.digest()

    def _everything(self) -> Iterator[tuple[str, bytes]]:
        for top in (self.folder, self.copied("x").parent):
            for folder, _, names in os.walk(top):
                yield f"{folder}/", b""
                for name in names:
                    with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - as above
                        yield file.name, file.read()
        if self.in_bucket:
            yield from read_objects().items()

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.copied("x").parent, ignore_errors=True)
        if self.in_bucket:
            import obstore

            client = bucket_of(BUCKET)
            for page in obstore.list(client):
                obstore.delete(client, [entry["path"] for entry in page])


def read_objects() -> dict[str, bytes]:
    import obstore

    client = bucket_of(BUCKET)
    names = [entry["path"] for page in obstore.list(client) for entry in page]
    return {name: bytes(obstore.get(client, name).bytes()) for name in names}


def write_source(folder: Path, split: str, rows: Rows) -> ImportRequest:
    """The rows as an .npz file that can be imported, and read again by a repair."""
    path = folder / f"{split}-{rows.ids[0].partition('/')[0]}-{len(rows)}.npz"
    if not path.exists():
        arrays = {
            split: rows.values, f"{split}_labels": np.array(rows.classes), f"{split}_ids": np.array(rows.ids),
            f"{split}_area": np.array(rows.areas), f"{split}_note": np.array(rows.notes),
            "classes": np.array(CLASSES),
        }  # fmt: skip
        partial = path.with_name(f"{path.name}.{os.getpid()}.npz")
        np.savez(partial, **arrays)  # type: ignore[arg-type]
        partial.replace(path)
    return ImportRequest(path, split=split, column=("area", "note"))


def _import(place: str, sources: Path, splits: Mapping[str, Rows], chunk_rows: int = CHUNK) -> None:
    for name, rows in splits.items():
        import_file(write_source(sources, name, rows), place, chunk_rows=chunk_rows)


SMALL = {"train": make_rows("t", 80), "val": make_rows("v", 40)}


class States:
    """By name; made when first asked for, in a folder of this process."""

    def __init__(self, folder: Path, sources: Path) -> None:
        self._folder, self._sources = folder, sources
        self._made: dict[tuple[str, bool], State] = {}

    def get(self, name: str, in_bucket: bool) -> State:
        key = (name, in_bucket)
        if key not in self._made:
            world = World(self._folder / "making", self._sources, in_bucket)
            world.fill(State())
            with small_and_timeless():
                state = MAKERS[name](world)
            state.files |= self._read(world)
            world.clear()
            self._made[key] = state
        return self._made[key]

    def _read(self, world: World) -> dict[str, bytes]:
        if world.in_bucket:
            return read_objects()
        paths = sorted(path for path in world.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(world.folder)): path.read_bytes() for path in paths}


def _nothing(world: World) -> State:
    return State()


def _healthy(world: World) -> State:
    _import(world.store, world.sources, SMALL)
    return State(dict(SMALL))


def _whole_chunks(world: World) -> State:
    """Two chunks of 64 rows, both full: whoever appends need not read any of them."""
    splits = {"train": make_rows("t", 4 * CHUNK)}
    _import(world.store, world.sources, splits, 2 * CHUNK)
    return State(dict(splits))


def _with_files_of_a_user(world: World) -> State:
    state = _healthy(world)
    own = {
        "README.txt": b"mine",
        "train/notes.md": b"mine, too",
        "umap/zarr.json": b'{"zarr_format": 3, "node_type": "group", "attributes": {}}',
        "umap/points/c/0": b"\x00" * 64,
    }
    for name, data in own.items():
        path = Path(world.store) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    state.own = tuple(f"{STORE}/{name}" for name in own)
    return state


def _flip(path: str, byte: int) -> None:
    with Path(path).open("r+b") as file:
        file.seek(byte)
        (value,) = file.read(1)
        file.seek(byte)
        file.write(bytes([value ^ 2]))


def _damaged_labels(world: World) -> State:
    """A bit of the label of row 50, in the chunk that an append extends."""
    state = _healthy(world)
    _flip(f"{world.store}/train/labels/c/1", 4 * 2)
    state.is_damaged = True
    return state


def _damaged_ids(world: World) -> State:
    state = _healthy(world)
    last = max(Path(world.store, "train/path_bytes/c").iterdir(), key=lambda path: int(path.name))
    _flip(str(last), 3)
    state.is_damaged = True
    return state


def _damaged_twice(world: World) -> State:
    """A chunk of rows of the first split, and of the second one labels, beyond its rows: nothing is lost."""
    state = _healthy(world)
    _flip(f"{world.store}/train/activations/c/0/0", 100)
    _flip(f"{world.store}/val/labels/c/0", 4 * 45)
    state.is_damaged = True
    return state


def _indexed(world: World) -> State:
    """A bounded and an approximate index of the first 1,100 of 1,300 rows."""
    first, more = make_rows("t", 1100), make_rows("m", 200)
    _import(world.store, world.sources, {"train": first})
    split = actstore.open(world.store)["train"]
    engine = BoundedSearch.build(split)
    if not engine.prunes:
        raise RuntimeError("the bounded index of the simulated rows does not prune: nothing would be tried")
    build_index(split, "ivf", dims=16, lists=8).save()
    append_file(write_source(world.sources, "train", more), world.store)
    return State({"train": first + more})


def _with_another(world: World) -> State:
    """Beside the store lies one of as many rows, with other labels, values and ids."""
    state = _healthy(world)
    others = {name: make_rows(f"other-{name}", len(rows), CLASSES[1:3]) for name, rows in SMALL.items()}
    _import(world.place(f"{STORE}.new"), world.sources, others)
    state.others = others
    return state


MAKERS: dict[str, Callable[[World], State]] = {
    "nothing": _nothing,
    "healthy": _healthy,
    "whole-chunks": _whole_chunks,
    "own-files": _with_files_of_a_user,
    "damaged-labels": _damaged_labels,
    "damaged-ids": _damaged_ids,
    "damaged-twice": _damaged_twice,
    "indexed": _indexed,
    "another": _with_another,
}

"""What runs at once: the calls that the commands of the same names make, and what each adds to a store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import dask.delayed  # noqa: F401  # whoever is killed while it is imported leaves half of it behind
import numpy as np

import actstore
from actstore.audit.auditing import audit_store
from actstore.search.approximate import ApproximateSearch
from actstore.search.bounded import BoundedSearch
from actstore.search.indexing import build_index, extend_index
from actstore.storage.place import parse_place
from actstore.tables.importing import append_file, import_file
from actstore.upkeep.copies import rechunk as rechunk_store
from actstore.upkeep.copies import select as select_rows
from actstore.upkeep.repair import repair_faults as mend
from actstore.upkeep.repair import restore_groups
from actstore.upkeep.verify import verify_store
from tests.simulation.rows import K, Rows, make_rows, queries, read_rows
from tests.simulation.states import CHUNK, SMALL, STORE, World, write_source
from tests.simulation.stops import pause

Kind = Literal["", "read", "search", "statistics", "faults", "selected", "whole", "copied"]  # what the oracle looks at


@dataclass(frozen=True)
class Command:
    """adds: rows by split that are there once it has ended. gives: what its result, or the store at `out`, is.
    replaces: it puts another store there. is_foreign: it is none of this library, and not killed. check: what is wrong
    with what it leaves."""

    name: str
    run: Callable[[World], Any]
    adds: Mapping[str, Rows] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    gives: Kind = ""
    split: str = "train"
    out: str = ""
    replaces: bool = False
    is_foreign: bool = False
    check: Callable[[World], str | None] | None = None

    @property
    def only_reads(self) -> bool:
        return self.gives in ("read", "search", "copied") or self.name == "verify"


def write(tag: str, count: int, split: str = "train", classes: Sequence[str] = (), restart: bool = False) -> Command:
    """Rows of a program. A crash leaves them to be resumed by the same source. restart: drop those of another."""
    rows = make_rows(tag, count, [*classes] or ("bee", "cat", "dog"))

    def run(world: World) -> None:
        store = actstore.open(world.store)
        if classes:
            store.add_classes(classes)
        with store.writer(split, source={"kind": "program", "name": tag}, restart=restart) as writer:
            at = writer.position - writer.committed.rows
            rest = rows.pick(range(at, len(rows)))
            writer.append(rest.values, np.array(rest.classes), rest.ids, rest.columns)

    return Command("write", run, {split: rows}, tuple(classes))


def append(tag: str, count: int, split: str = "train") -> Command:
    rows = make_rows(tag, count)
    return Command(
        "append", lambda world: append_file(write_source(world.sources, split, rows), world.store), {split: rows}
    )


def import_new(split: str) -> Command:
    rows = SMALL[split]

    def run(world: World) -> None:
        import_file(write_source(world.sources, split, rows), world.store, chunk_rows=CHUNK)

    return Command(f"import_{split}", run, {split: rows})


def add_classes(*names: str) -> Command:
    return Command("add_classes", lambda world: actstore.open(world.store).add_classes(names), classes=names)


def read(rows_first: bool = True, split: str = "train") -> Command:
    """take, labels, ids and columns of a split that was opened once."""
    name = "read" if rows_first else "read-labels-first"
    return Command(
        name, lambda world: read_rows(actstore.open(world.store)[split], rows_first), gives="read", split=split
    )


def search(method: str = "auto") -> Command:
    """The first search also measures the norms and keeps them."""
    return Command(
        "search", lambda world: actstore.open(world.store)["train"].search(queries(), K, method=method), gives="search"
    )


def means() -> Command:
    return Command("means", lambda world: actstore.open(world.store)["train"].statistics(), gives="statistics")


def verify() -> Command:
    return Command("verify", lambda world: verify_store(actstore.open(world.store)), gives="faults")


def repair() -> Command:
    def run(world: World) -> Any:
        restore_groups(parse_place(world.store))
        store = actstore.open(world.store)
        faults = verify_store(store)
        outcomes = mend(store, faults) if faults else []
        return verify_store(store) if outcomes else faults

    return Command("repair", run, gives="faults")


def index_bounded() -> Command:
    def run(world: World) -> None:
        BoundedSearch.build(actstore.open(world.store)["train"], pause)

    return Command("index", run)


def index_approximate() -> Command:
    def run(world: World) -> None:
        split = actstore.open(world.store)["train"]
        try:
            before = ApproximateSearch.load(split, "ivf")
        except actstore.errors.ActstoreError:
            before = None
        if before is None or before.covered == len(split):
            build_index(split, "ivf", dims=16, lists=8, progress=pause).save()
        else:
            extend_index(before, progress=pause).save()

    return Command("index-ivf", run)


def rechunk(rows: int = 2 * CHUNK) -> Command:
    return Command(f"rechunk{rows}", lambda world: rechunk_store(world.store, chunk_rows=rows))


def rechunk_out(out: str = "out.zarr") -> Command:
    return Command(
        "rechunk-out", lambda world: rechunk_store(world.store, world.place(out), 2 * CHUNK), gives="whole", out=out
    )


def select(out: str = "dogs.zarr") -> Command:
    def run(world: World) -> None:
        select_rows(world.store, world.place(out), classes=["dog"], splits=["train"], chunk_rows=CHUNK)

    return Command("select", run, gives="selected", out=out)


def audit() -> Command:
    return Command("audit", lambda world: audit_store(actstore.open(world.store), ("train",)))


def copy(by_name: bool = True) -> Command:
    """Another tool copies the store file by file, or many at a time, in any order; what vanishes it leaves out."""

    def run(world: World) -> None:
        found = sorted(str(Path(folder, name)) for folder, _, names in os.walk(world.store) for name in names)
        names = [os.path.relpath(name, world.folder) for name in found]
        for name in names if by_name else sorted(names, key=lambda name: crc32(name.encode())):
            target = world.copied(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                target.write_bytes((world.folder / name).read_bytes())
            except FileNotFoundError:
                continue

    return Command("copy" if by_name else "copy-many", run, gives="copied", is_foreign=True)


def replace() -> Command:
    """Another tool puts another store in its place."""

    def run(world: World) -> None:
        (world.folder / STORE).rename(world.folder / f"{STORE}.old")
        (world.folder / f"{STORE}.new").rename(world.folder / STORE)

    return Command("replace", run, replaces=True, is_foreign=True)

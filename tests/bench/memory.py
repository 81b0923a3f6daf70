"""Peak memory of every stage at 1.2 million x 2048 fp16 (4.9 GB), through the commands where there is one.

`python -m tests.bench.memory [--rows N] [--parts making,reading,…]`. The bar is 2 GB; searches state their own.
Memory is that of the process and its children: its own, and with pages of mapped files, which the kernel takes back
when it needs them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from actstore.compute.process import Result
from tests.bench.common import OUT, ROOT, report
from tests.bench.watch import Usage, watch

BAR = 2e9
CLASSES, DIM, TEST_ROWS, MORE_ROWS = 1000, 2048, 2000, 100_000
BUILD_SECONDS = 60.0
LIBRARY = """
import itertools, sys, numpy as np, actstore
train = actstore.open("{store}.zarr")["train"]
random = np.random.default_rng(0)
{code}
"""
USES = {
    "take, 200 x 900 random rows": "for _ in range(200): train.take(random.integers(0, len(train), 900))",
    "of_class, 50 classes": "for label in range(50): train.of_class(label)",
    "blocks, all rows": "for block in train.blocks(): block[:, ::64].sum(dtype=np.float32)",
    "to_dataset, shuffled, 500 batches of 256":
        "for _ in itertools.islice(train.to_dataset(256, seed=0), 500): pass",
    "to_dataset, in order, all rows": "for _ in train.to_dataset(1024): pass",
    "ClassBatches, streamed, 30 batches":
        "from actstore import ClassBatches\nfor _ in ClassBatches(train, steps=30): pass",
    "to_dask, mean of all rows": "train.to_dask().mean(axis=0, dtype='f4').compute()",
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """searches: it states its memory, and the bar is not its own."""

    name: str
    run: Callable[[], Usage]
    searches: bool = False


def folder() -> Path:
    return OUT / "memory"


def command(tool: str, *arguments: str) -> Usage:
    return watch(sys.executable, "-c", f"from cli.{tool} import main; main()", *arguments, cwd=folder())


actstore, ppa = partial(partial, command, "actstore"), partial(partial, command, "ppa")


def library(code: str, store: str) -> Usage:
    return watch(sys.executable, "-c", LIBRARY.format(store=store, code=code), cwd=folder())


def making(rows: int) -> Iterator[Stage]:
    """Stores: shuffled.zarr, generated; sorted.zarr, imported from its export."""
    size = ("--dim", str(DIM), "--classes", str(CLASSES), "--shuffled")
    test = ("--split", "val", "--rows", str(TEST_ROWS), "--seed", "1")
    yield Stage("synth", actstore("synth", "shuffled.zarr", "--rows", str(rows), *size))
    yield Stage("synth, test rows", actstore("synth", "shuffled.zarr", *test, *size))
    yield Stage("export .npy", actstore("export", "shuffled.zarr", "rows.npy", "--split", "train"))
    yield Stage("import .npy", partial(import_sorted, rows))
    yield Stage("export .parquet", export_parquet)


def import_sorted(rows: int) -> Usage:
    np.save(folder() / "labels.npy", np.arange(rows) * CLASSES // rows)
    return command("actstore", "import", "rows.npy", "sorted.zarr", "--labels", "labels.npy")


def export_parquet() -> Usage:
    usage = command("actstore", "export", "shuffled.zarr", "rows.parquet", "--split", "train")
    (folder() / "rows.parquet").unlink()
    return usage


def reading(rows: int) -> Iterator[Stage]:
    for store, name in (("shuffled", f"class{CLASSES - 1}"), ("sorted", str(CLASSES - 1))):
        path = f"{store}.zarr"
        yield Stage(f"means, {store}", actstore("means", path, "--split", "train"))
        yield Stage(f"verify, {store}", actstore("verify", path))
        yield Stage(f"verify --repair, {store}", partial(repair, path))
        yield Stage(f"query --class, {store}", actstore("query", path, "--split", "train", "--class", name, "--json"))
        for use, code in USES.items():
            yield Stage(f"{use}, {store}", partial(library, code, store))
    yield Stage("info --classes", actstore("info", "shuffled.zarr", "--classes", "--json"))
    yield Stage("query --glob", actstore("query", "sorted.zarr", "--glob", "*77*", "--limit", "5"))
    yield Stage("append", partial(append, rows))
    yield Stage("means after an append", actstore("means", "sorted.zarr"))


def repair(path: str) -> Usage:
    """A flipped bit in each of two chunks, read again from the source."""
    for chunk in ("0", "3"):
        with (folder() / path / "train" / "activations" / "c" / chunk / "0").open("r+b") as stream:
            stream.seek(1000)
            (byte,) = stream.read(1)
            stream.seek(1000)
            stream.write(bytes([byte ^ 1]))
    return command("actstore", "verify", path, "--repair")


def append(rows: int) -> Usage:
    count = min(rows, MORE_ROWS)
    np.save(folder() / "more.npy", np.load(folder() / "rows.npy", mmap_mode="r")[:count])
    np.save(folder() / "more-labels.npy", np.arange(count) % CLASSES)
    return command("actstore", "append", "more.npy", "sorted.zarr", "--labels", "more-labels.npy")


def predicting(rows: int) -> Iterator[Stage]:
    store, trained = ("--store", "shuffled.zarr"), ("--phi", "runs/phi2")
    few = ("--epochs", "1", "--batches", "20")
    yield Stage("ppa split", ppa("split", *store))
    yield Stage("ppa train phi1, 20 steps", ppa("train", "--phi", "phi1", *store, *few))
    yield Stage("ppa train phi2, 20 steps", ppa("train", "--phi", "phi2", *store, *few))
    yield Stage("ppa calibrate, 3 tasks", ppa("calibrate", *trained, *store, "--tasks", "3"))
    one = ("--draws", "1", "--shots", "1")
    yield Stage("ppa eval phi2, class-mean", ppa("eval", *store, *trained, "--methods", "class-mean", *one))
    yield Stage("ppa eval nn", ppa("eval", *store, "--methods", "nn", *one), searches=True)
    episodes = ppa("episodes", *store, "--tasks", "20")
    yield Stage("ppa episodes, 15 queries", partial(episodes, *trained, "--queries", "15"))
    yield Stage("ppa episodes, all queries", episodes)


def searching(rows: int) -> Iterator[Stage]:
    train = ("shuffled.zarr", "--split", "train")
    search = actstore("search", *train, "--row", "17", "--method")
    yield Stage("search exact", partial(search, "exact"), searches=True)
    for kind in ("bounded", "pq"):
        yield Stage(f"index {kind}", actstore("index", *train, "--kind", kind), searches=True)
        yield Stage(f"search {kind}", partial(search, kind), searches=True)


def building(rows: int) -> Iterator[Stage]:
    """All images are listed; for a while they are drawn and go through a small backbone, then it is interrupted."""
    source = f"glyphs:{CLASSES}x{max(1, rows // CLASSES)}x1"
    arguments = ("build", source, "built.zarr", "--backbone", "small", "--random-weights")
    build = partial(watch, sys.executable, "-c", "from cli.actstore import main; main()", *arguments)
    yield Stage(f"build, {BUILD_SECONDS:.0f} s of it", partial(build, cwd=folder(), until=BUILD_SECONDS))


def tables(rows: int) -> Iterator[Stage]:
    """Parquet of 50,000 and of 200,000 rows, whatever `rows` is: what an import needs must not grow with its file."""
    for count in (50_000, 200_000):
        for group, named in ((8192, "row groups of 8,192"), (count, "one row group")):
            name = f"{count:,} x 1024 fp16 .parquet, {named}"
            yield Stage(f"import {name}", partial(import_parquet, count, group, "import"))
            yield Stage(f"append {name}", partial(import_parquet, count, group, "append"))


def import_parquet(count: int, group: int, verb: str) -> Usage:
    import pyarrow
    import pyarrow.parquet

    path, store = folder() / "table.parquet", f"table-{count}-{group}.zarr"
    random = np.random.default_rng(verb == "append")  # the same rows are not appended twice
    flat = pyarrow.array(random.random(count * 1024, np.float32).astype(np.float16))
    table = pyarrow.table({"activations": pyarrow.FixedSizeListArray.from_arrays(flat, 1024)})
    pyarrow.parquet.write_table(table, path, row_group_size=group)
    usage = command("actstore", verb, path.name, store)
    path.unlink()
    return usage


PARTS = {
    "making": making, "reading": reading, "predicting": predicting, "searching": searching, "building": building,
    "tables": tables,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"Of {', '.join(PARTS)}.")
    options = parser.parse_args()
    # two stores, an .npy and a .parquet at a time
    if shutil.disk_usage(OUT.parent).free < 4.5 * options.rows * DIM * 2 + 15e9:
        sys.exit(f"this benchmark needs {4.5 * options.rows * DIM * 2 / 1e9:.0f} GB of disk, and leaves 15 GB free")
    os.environ["PYTHONPATH"] = str(ROOT)
    shutil.rmtree(folder(), ignore_errors=True)
    folder().mkdir(parents=True)
    try:
        results, over = measure(options.parts.split(","), options.rows)
    finally:
        shutil.rmtree(folder(), ignore_errors=True)
    report("memory", results, [f"every stage but searches below 2 GB of its own; above: {', '.join(over) or 'none'}"])


def measure(parts: Sequence[str], rows: int) -> tuple[list[Result], list[str]]:
    """Figures of every stage, and the names of those above the bar."""
    results, over = [], []
    for stage in (stage for part in parts for stage in PARTS[part](rows)):
        usage = stage.run()
        own, resident = usage.own / 1e6, usage.resident / 1e6
        print(
            f"{stage.name:48s} {usage.seconds:8.1f} s {own:8,.0f} MB {resident:8,.0f} MB", file=sys.stderr, flush=True
        )
        name = f"{stage.name} (search)" if stage.searches else stage.name
        results.append(Result(f"{name}: own", own, "MB"))
        results.append(Result(f"{name}: with mapped pages", resident, "MB"))
        results.append(Result(f"{name}: start-up included", usage.seconds, "s"))
        if usage.own > BAR and not stage.searches:
            over.append(stage.name)
    return results, over


if __name__ == "__main__":
    main()

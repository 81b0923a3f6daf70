"""Searches of some of the rows, and of rows that were appended to an index."""

from __future__ import annotations

import shutil

import numpy as np
import torch

import actstore as library
from actstore.compute.process import Result
from actstore.search import BoundedSearch
from actstore.tables.row_source import TILE, SyntheticSpec
from tests.bench.common import OUT, actstore, report
from tests.bench.search_common import (
    BATCH,
    DIM,
    Action,
    K,
    bounded_of,
    held_out,
    in_turns,
    per_query,
    quiet,
    same,
    synthetic_store,
)


def filters(rows: int, rounds: int) -> None:
    """1% and 10% of the rows, drawn at random."""
    split, queries = synthetic_store(rows)["train"], torch.from_numpy(held_out(rows))
    engine, results, verdicts = bounded_of(split), [], []
    random = np.random.default_rng(0)
    drawn = {f"{share}% of the rows": np.sort(random.choice(rows, rows * share // 100, replace=False))
             for share in (1, 10)}  # fmt: skip
    for name, search in (("exact", engine.exact.search), ("bounded", engine.search)):
        for batch in (BATCH, 1):
            actions: dict[str, Action] = {
                "all rows": quiet(search, queries[:batch], K),
                **{some: quiet(search, queries[:batch], K, chosen) for some, chosen in drawn.items()},
            }
            times = in_turns(actions, rounds)
            for some in drawn:
                what = f"{name}, {some}, batch {batch}: {times[some] / times['all rows']:.1%} of all"
                results.append(per_query(what, times, some, "all rows", batch))
        verdicts += [same(search(queries, K, some), engine.exact.search(queries, K, some)) for some in drawn.values()]
    bar = "1% of the rows at most 5% of a whole search, 10% at most 20%"
    report("search-filters", results, [f"{bar}; {', '.join(verdicts)} to exact"])


def appending(rows: int) -> None:
    """A tenth more rows: right at once, and extending against building."""
    path, more = OUT / "data" / "search-append.zarr", OUT / "data" / "search-append-more.npy"
    for old in (path, path.with_name(f"{path.name}.search")):
        shutil.rmtree(old, ignore_errors=True)
    actstore("synth", path, "--rows", str(rows), "--shuffled")
    spec = SyntheticSpec((rows // TILE + 4) * TILE + rows // 10, DIM, shuffled=True)
    start = (rows // TILE + 2) * TILE
    fresh = np.concatenate(list(spec.table().activations.blocks(start, start + rows // 10))).astype(np.float16)
    np.save(more, fresh)
    queries, results, notes = held_out(rows), [], []
    for kind in ("bounded", "pq"):
        actstore("index", path, "--kind", kind, *(() if kind == "bounded" else ("--recall", "0.5")))
    actstore("append", more, path)
    split = library.open(path)["train"]
    engine = BoundedSearch(split)
    verdict = same(engine.search(queries, K), engine.exact.search(queries, K))
    notes.append(f"right after the append: {verdict} to exact; {engine.covered:,} of {len(split):,} rows by the index")
    for kind in ("bounded", "pq"):
        options = () if kind == "bounded" else ("--recall", "0.5")
        extend, _, said = actstore("index", path, "--kind", kind, *options)
        build, _, _ = actstore("index", path, "--kind", kind, "--again", *options)
        results.append(
            Result(f"extending {kind}, {rows:,} rows by 10%", extend, "s", "building", build, build / extend)
        )
        notes.append(said)
    fresh_engine = BoundedSearch(library.open(path)["train"])
    verdict = same(fresh_engine.search(queries, K), fresh_engine.exact.search(queries, K))
    report("search-append", results, ["extending at most a fifth of building", f"then: {verdict} to exact", *notes])
    more.unlink()

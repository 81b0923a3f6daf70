"""Exact and bounded searches beside the bounded search of before, faiss and torch: generated and real rows."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import actstore as library
from actstore.analysis.neighbours import Graph
from actstore.compute.process import Result, peak_memory
from actstore.compute.tensors import borrow
from actstore.search import BoundedSearch
from actstore.search.levels import fit_directions
from actstore.search.table import unit
from tests.bench.common import OUT, alternate, report
from tests.bench.search_common import (
    BARE_BLOCK,
    BATCH,
    DIM,
    Action,
    K,
    bare,
    bounded_of,
    held_out,
    in_turns,
    per_query,
    quiet,
    same,
    synthetic_store,
)
from tests.bench.search_processors import Child
from tests.conftest import REAL_DATA

ASKED = 4096


def synthetic(rows: int, rounds: int) -> None:
    """Batches of 32, 8 and 1: bounded, exact, and bare torch over the same bytes."""
    split, queries = synthetic_store(rows)["train"], held_out(rows, 1000)
    engine, results = bounded_of(split), []
    for batch in (BATCH, 8, 1):
        asked = torch.from_numpy(queries[:batch])
        actions: dict[str, Action] = {
            "bounded": quiet(engine.search, asked, K),
            "our exact search": quiet(engine.exact.search, asked, K),
        }
        if batch > 1:
            held = borrow(np.asarray(split))  # mapped: the same pages
            actions["bare torch, fp16"] = quiet(bare(held, asked, K))
        times = in_turns(actions, rounds)
        what = f"bounded, {rows:,} x {DIM}, batch {batch}, k = {K}"
        results += [per_query(what, times, "bounded", peer, batch) for peer in list(actions)[1:]]
    results.append(Result("bounded index", engine.nbytes / 1e6, "MB"))
    verdict = same(engine.search(queries, K), engine.exact.search(queries, K))
    notes = [
        "batch 32: 8x our exact search; batch 1: 3x; batch 8: at most 2.2x of batch 32 a query",
        f"{len(queries):,} queries {verdict} to exact; widths {engine.levels.widths}; {engine.fell_back} fell back",
    ]
    report("search-synthetic", results, notes)


def neighbours(rows: int, rounds: int, before: Path | None = None) -> None:
    """The neighbours of all rows, from rows to graph, beside batches of 32 of some of them with an index at hand; and
    beside batches of an earlier tree."""
    split = synthetic_store(rows)["train"]
    engine, asked = bounded_of(split), torch.from_numpy(np.asarray(split[:ASKED]).astype(np.float32))
    graphs: list[Graph] = []
    batches = f"bounded, batches of {BATCH}"

    def in_batches() -> float:
        begin = time.perf_counter()
        for batch in asked.split(BATCH):
            engine.search(batch, 11)
        return (time.perf_counter() - begin) * rows / ASKED

    actions: dict[str, Action] = {
        "all rows": lambda: graphs.append(library.knn(split, 10)), batches: in_batches,
    }  # fmt: skip
    earlier = None if before is None else _earlier_batches(split, before, asked)
    if earlier is not None:
        actions["batches of before"] = lambda: rows / ASKED * sum(earlier.search(BATCH) for _ in range(ASKED // BATCH))
    times = in_turns(actions, rounds)
    scores, found = engine.search(asked, 11)
    own = found != np.arange(ASKED)[:, None]
    own[own.all(1), -1] = False  # a row behind ten copies of it
    verdict = same((scores[own].reshape(ASKED, 10), found[own].reshape(ASKED, 10)),
                   (graphs[-1].scores[:ASKED], graphs[-1].rows[:ASKED]))  # fmt: skip
    what = f"the neighbours of all of {rows:,} x {DIM}, k = 10"
    results = [
        *(per_query(what, times, "all rows", peer, rows) for peer in list(actions)[1:]),
        Result("  all of it", times["all rows"], "s"),
        Result("  peak memory, mapped rows included", peak_memory() / 1e9, "GB"),
    ]
    report("search-neighbours", results, [f"2x the batches of before; {verdict} to bounded for {ASKED:,} rows"])


def _earlier_batches(split: library.Split, tree: Path, asked: Tensor) -> Child:
    path = OUT / "queries-neighbours.npy"
    np.save(path, asked.numpy())
    return Child(str(split.store_path), str(path), {}, tree.resolve(), 11)


def against_faiss(rows: int, rounds: int) -> None:
    """Our exact and bounded search beside faiss's flat indexes and torch, which need a copy of unit rows in fp32."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    split, queries = synthetic_store(rows)["train"], torch.from_numpy(held_out(rows))
    engine, results, notes = bounded_of(split), [], ["batch 1: our exact search no slower than torch over an fp32 copy"]
    directions = fit_directions(engine.table)
    answer = engine.search(queries, K)[1]
    for name, turn in (
        ("faiss IndexFlatIP, fp32", False),
        ("faiss IndexFlatIPPanorama, 16 levels, after a PCA", True),
    ):
        index = faiss.IndexFlatIPPanorama(DIM, 16) if turn else faiss.IndexFlatIP(DIM)
        step = -(-rows // 128)  # a power of two: faiss doubles its memory, and ends with no more than it needs
        for start in range(0, rows, step):
            block = unit(engine.table.read(start, min(rows, start + step)))
            index.add((block @ directions.T if turn else block).numpy())
        asked = unit(queries) @ directions.T if turn else unit(queries)
        for batch in (BATCH, 1):
            actions: dict[str, Action] = {
                "bounded": quiet(engine.search, queries[:batch], K),
                "exact": quiet(engine.exact.search, queries[:batch], K),
                name: quiet(index.search, asked[:batch].numpy(), K),
            }
            if not turn:
                flat = torch.from_numpy(faiss.rev_swig_ptr(index.get_xb(), rows * DIM)).view(rows, DIM)
                actions["torch over an fp32 copy"] = quiet(bare(flat, queries[:batch], K, 8192))
            times = in_turns(actions, rounds)
            for ours in ("exact", "bounded"):
                what = f"{ours}, {rows:,} x {DIM}, batch {batch}"
                results += [per_query(what, times, ours, peer, batch) for peer in list(actions)[2:]]
        agreed = float((index.search(asked.numpy(), K)[1] == answer).mean())
        notes.append(f"{agreed:.1%} of the neighbours of {name} are ours, place by place")
        del index, actions
    report("search-faiss", results, [*notes, f"peak memory {peak_memory() / 1e9:.1f} GB (mapped files included)"])


def real(rounds: int) -> None:
    with np.load(REAL_DATA / "miniimagenet-activations.npz") as data:
        values, val = torch.from_numpy(data["train"]), torch.from_numpy(data["val"]).float()
    queries = val[:: len(val) // BATCH][:BATCH]
    engine = BoundedSearch.build(values)
    _bounded("search-real", "bounded, mini-ImageNet", engine, values, queries, rounds, 5)


def isotropic(rows: int, rounds: int) -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.empty(rows, DIM, dtype=torch.float16)
    for block in values.split(8192):
        block.copy_(torch.randn(block.shape, generator=random))
    queries = torch.randn(BATCH, DIM, generator=random)
    engine = BoundedSearch.build(values)
    _bounded("search-isotropic", f"bounded, isotropic {rows:,} x {DIM}", engine, values, queries, rounds, 0.91)


def _bounded(
    name: str, what: str, engine: BoundedSearch, held: Tensor, queries: Tensor, rounds: int, bar: float
) -> None:
    results, notes = [], [f"{bar}x our exact search; widths {engine.levels.widths}, {engine.nbytes / 1e6:,.0f} MB"]
    for k in (1, K, 10):
        actions: dict[str, Action] = {
            "bounded": quiet(engine.search, queries, k),
            "our exact search": quiet(engine.exact.search, queries, k),
            "bare torch, fp16 in memory": quiet(bare(held, queries, k, BARE_BLOCK * DIM // held.shape[1])),
        }
        if held.nbytes < 1 << 30:  # one line, but a copy of all rows
            actions["(queries @ rows.float().T).topk(k)"] = quiet(one_line, held, queries, k)
            actions["(queries @ fp32 rows.T).topk(k)"] = quiet(one_line, held.float(), queries, k)
        times = alternate(actions, rounds)
        results += [per_query(f"{what}, k = {k}", times, "bounded", peer, BATCH) for peer in list(actions)[1:]]
        if held.nbytes < 1 << 28:
            # torch's threads wait busily for milliseconds after their work, in the time of whatever comes next: here
            # each is also run just before it is timed
            times = alternate(actions, rounds, settle=True)
            results.append(per_query(f"{what}, k = {k}, settled", times, "bounded", "our exact search", BATCH))
        notes.append(f"k = {k}: {same(engine.search(queries, k), engine.exact.search(queries, k))} to exact")
    report(name, results, [*notes, f"{engine.fell_back} queries fell back"])


def one_line(rows: Tensor, queries: Tensor, k: int) -> Tensor:
    return (queries @ rows.float().T).topk(k, dim=1).indices

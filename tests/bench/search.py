"""Searches beside their peers: exact, bounded and approximate, on real and on generated rows.

python -m tests.bench.search [--rows 1200000] [--only real,synthetic,isotropic,approximate,exact]
    [--no-faiss] [--threads N]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import actstore as library
from actstore.bench.measure import Result, alternate, peak_memory
from actstore.search import BoundedSearch, ExactSearch
from actstore.search.indexing import build_index, measure_recall
from actstore.search.kept_files import find
from actstore.search.queries import unit
from actstore.tables.synthetic import TILE, SyntheticSpec
from tests.bench.common import OUT, actstore, features, report
from tests.conftest import REAL_DATA

BATCH, K, DIM = 32, 5, 2048
BARE_BLOCK = 512  # rows of 2048 dimensions: the fastest for the bare loop on one core


def bare(rows: Tensor, queries: Tensor, k: int, block: int = BARE_BLOCK) -> Callable[[], Tensor]:
    """What one would write: convert a block of the tensor held in memory, multiply, keep the k best. By inner product
    with unit queries: the norms of the rows, which a cosine needs, are left out in favour of the peer."""
    directions, buffer = unit(queries), torch.empty(block, rows.shape[1])

    def search() -> Tensor:
        scores, places = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
        for start in range(0, len(rows), block):
            piece = rows[start : start + block]
            if piece.dtype != torch.float32:
                piece = buffer[: len(piece)].copy_(piece)
            best = (directions @ piece.T).topk(min(k, len(piece)), dim=1)
            scores = torch.cat([scores, best.values], 1)
            places = torch.cat([places, best.indices + start], 1)
        return places.gather(1, scores.topk(k, dim=1).indices)

    return search


def one_line(rows: Tensor, queries: Tensor, k: int) -> Tensor:
    return (queries @ rows.float().T).topk(k, dim=1).indices


def ratio(name: str, times: dict[str, float], ours: str, peer: str) -> Result:
    mine, theirs = times[ours] * 1e3 / BATCH, times[peer] * 1e3 / BATCH
    return Result(name, mine, "ms/query", peer, theirs, theirs / mine)


def same(one: tuple[Any, Any], other: tuple[Any, Any]) -> str:
    return "identical" if all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)) else "DIFFERENT"


def held_out(rows: int) -> NDArray[np.float32]:
    """(BATCH, DIM) generated rows of the same classes that are in no store: from tiles beyond the last."""
    spec = SyntheticSpec((rows // TILE + 3) * TILE, DIM, shuffled=True)
    start = (rows // TILE + 1) * TILE
    block = next(iter(spec.table().activations.blocks(start, start + TILE)))
    return block[:BATCH].astype(np.float16).astype(np.float32)


def synthetic_store(rows: int) -> library.ActivationStore:
    values, labels = features(rows)
    path = OUT / "data" / f"search-{rows}.zarr"
    if not path.exists():
        actstore("import", values, path, "--labels", labels)
    return library.open(path)


def exact(rows: int, rounds: int, with_faiss: bool) -> None:
    split, queries = synthetic_store(rows)["train"], torch.from_numpy(held_out(rows))
    engine = ExactSearch(split)
    answer = engine.search(queries, K)
    held = split.to_torch()  # the same bytes in memory, fp16
    actions: dict[str, Callable[[], Any]] = {
        "exact, from the store": lambda: engine.search(queries, K),
        "bare torch, fp16 in memory": bare(held, queries, K),
        "bare torch, fp16, 4096 rows at a time": bare(held, queries, K, 4096),
    }
    in_memory = ExactSearch(held)
    actions["exact, tensor in memory"] = partial(in_memory.search, queries, K)
    times = alternate(actions, rounds)
    results = [ratio("exact, from the store", times, "exact, from the store", peer) for peer in list(actions)[1:]]
    verdict = same(answer, in_memory.search(queries, K))
    memory = peak_memory()
    del held, in_memory, actions
    report("search-exact", results, [f"within 1.2x of bare torch (ratio >= 0.83); store and tensor {verdict}"])
    if with_faiss:
        _against_faiss(engine, queries, answer, memory)


def _against_faiss(engine: ExactSearch, queries: Tensor, answer: tuple[Any, Any], before: int) -> None:
    """faiss needs unit rows in fp32: 9.8 GB at 1.2 million; the fp32 tensor is searched by bare torch as well."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    table = engine.table
    index = faiss.IndexFlatIP(table.dim)
    for start in range(0, len(table), 8192):
        index.add(unit(table.read(start, min(len(table), start + 8192))).numpy())
    directions = unit(queries)
    flat = torch.from_numpy(faiss.rev_swig_ptr(index.get_xb(), index.ntotal * table.dim)).view(-1, table.dim)
    actions = {
        "exact, from the store": lambda: engine.search(queries, K),
        "faiss IndexFlatIP, fp32": lambda: index.search(directions.numpy(), K),
        "bare torch, fp32 in memory": bare(flat, queries, K),
    }
    times = alternate(actions, 3)
    agreed = float((index.search(directions.numpy(), K)[1] == answer[1]).mean())
    results = [ratio("exact, from the store", times, "exact, from the store", peer) for peer in list(actions)[1:]]
    results.append(Result("peak memory before faiss's copy", before / 1e9, "GB"))
    report("search-faiss", results, [f"3x faiss IndexFlatIP; {agreed:.1%} of its neighbours are ours, place by place"])


def real(rounds: int) -> None:
    with np.load(REAL_DATA / "miniimagenet-activations.npz") as data:
        values, val = torch.from_numpy(data["train"]), torch.from_numpy(data["val"]).float()
    queries = val[:: len(val) // BATCH][:BATCH]
    engine = BoundedSearch.build(values)
    _bounded("search-real", "bounded, mini-ImageNet", engine, values, queries, rounds, 5)


def synthetic(rows: int, rounds: int) -> None:
    split, queries = synthetic_store(rows)["train"], torch.from_numpy(held_out(rows))
    if find(split, "bounded") is None:
        seconds, peak, _ = actstore("index", split.store_path, "--kind", "bounded")
        print(f"bounded index: {seconds:.0f} s, peak {peak / 1e9:.2f} GB (mapped files included)", flush=True)
    _bounded(
        "search-synthetic", f"bounded, {rows:,} x {DIM}", BoundedSearch(split), split.to_torch(), queries, rounds, 3
    )


def isotropic(rows: int, rounds: int) -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.empty(rows, DIM, dtype=torch.float16)
    for block in values.split(8192):
        block.copy_(torch.randn(block.shape, generator=random))
    queries = torch.randn(BATCH, DIM, generator=random)
    engine = BoundedSearch.build(values)
    _bounded("search-isotropic", f"bounded, isotropic {rows:,} x {DIM}", engine, values, queries, rounds, 0.83)


def _bounded(
    name: str, what: str, engine: BoundedSearch, held: Tensor, queries: Tensor, rounds: int, bar: float
) -> None:
    results, notes = [], [f"{bar}x; widths {engine.levels.widths}, {engine.nbytes / 1e6:,.0f} MB"]
    for k in (1, K, 10):
        actions = {
            "bounded": lambda k=k: engine.search(queries, k),
            "bare torch, fp16 in memory": bare(held, queries, k, BARE_BLOCK * DIM // held.shape[1]),
            "our exact search": lambda k=k: engine.exact.search(queries, k),
        }
        if held.nbytes < 1 << 30:  # one line, but a copy of all rows
            actions["(queries @ rows.float().T).topk(k)"] = partial(one_line, held, queries, k)
            actions["(queries @ fp32 rows.T).topk(k)"] = partial(one_line, held.float(), queries, k)
        times = alternate(actions, rounds if k == K else max(3, rounds // 3))
        results += [ratio(f"{what}, k = {k}", times, "bounded", peer) for peer in list(actions)[1:]]
        notes.append(f"k = {k}: {same(engine.search(queries, k), engine.exact.search(queries, k))} to exact")
    report(name, results, [*notes, f"{engine.fell_back} queries fell back"])


def approximate(rows: int, rounds: int) -> None:
    results, notes = [], []
    with np.load(REAL_DATA / "miniimagenet-activations.npz") as data:
        values, val = torch.from_numpy(data["train"]), torch.from_numpy(data["val"]).float()
    # the effort is chosen on some of the held-out queries, the recall stated is that of others
    chosen_on, tested_on = val[::38][:256], val[1::10]  # even rows, odd rows
    _approximate(
        "mini-ImageNet", values, chosen_on, tested_on, {"ivf": {}, "hnsw": {}, "pq": {}}, rounds, results, notes
    )
    split = synthetic_store(rows)["train"]
    spec = SyntheticSpec((rows // TILE + 3) * TILE, DIM, shuffled=True)
    start = (rows // TILE + 1) * TILE
    fresh = torch.from_numpy(next(iter(spec.table().activations.blocks(start, start + TILE))))
    kinds = {"pq": {"dims": 256, "refine": 512}}
    _approximate(f"{rows:,} x {DIM}", split, fresh[:256], fresh[256:1256], kinds, rounds, results, notes)
    report("search-approximate", results, ["20x at recall@1 >= 0.95", *notes])


def _approximate(
    what: str, rows: Any, chosen_on: Tensor, tested_on: Tensor, kinds: dict[str, Any], rounds: int,
    results: list[Result], notes: list[str],
) -> None:  # fmt: skip
    exact_engine = ExactSearch(rows)
    truth = exact_engine.search(tested_on, 1)[1][:, 0]
    for kind, settings in kinds.items():
        engine = build_index(rows, kind, queries=chosen_on, recall=0.96, **settings)
        recall = measure_recall(engine, tested_on, truth, engine.settings.effort)
        queries = tested_on[:BATCH]
        actions = {"approximate": lambda: engine.search(queries, 1), "exact": lambda: exact_engine.search(queries, 1)}  # noqa: B023
        times = alternate(actions, rounds)
        results.append(ratio(f"{kind}, {what}: recall@1 {recall:.3f}", times, "approximate", "exact"))
        made = engine.settings
        notes.append(
            f"{kind}, {what}: dims {made.dims}, lists {made.lists}, effort {made.effort}, refine {made.refine}, "
            f"{engine.nbytes / 1e6:,.0f} MB; recall@1 {recall:.3f} on {len(tested_on)} held-out queries"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="real,synthetic,isotropic,approximate,exact")
    parser.add_argument("--no-faiss", action="store_true", help="Leave out what needs an fp32 copy of the rows.")
    parser.add_argument("--threads", type=int, help="By default those of torch: one per core.")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    chosen = options.only.split(",")
    if "real" in chosen:
        real(4 * options.rounds)
    if "synthetic" in chosen:
        synthetic(options.rows, options.rounds)
    if "isotropic" in chosen:
        isotropic(min(options.rows, 200_000), options.rounds)
    if "approximate" in chosen:
        approximate(options.rows, options.rounds)
    if "exact" in chosen:
        exact(options.rows, options.rounds, not options.no_faiss)


if __name__ == "__main__":
    main()

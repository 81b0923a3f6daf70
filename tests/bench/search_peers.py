"""Searches of other libraries over the same rows, each in turns with ours, approximate ones at one recall:
`python -m tests.bench.search --peers [--rows 200000] [--rounds N]`.

Indexes are built once and kept in bench-out/peers-ROWS; the first run takes half an hour on two cores. What is not
installed is left out with a line. Rows are generated ones; every peer gets them as unit rows in float32, ours are the
float16 rows of a store. An approximate peer gets the first effort that finds the nearest row of 96% of 256 queries;
the recall stated is of 744 others.
"""

from __future__ import annotations

import importlib.metadata
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actstore.compute.process import Result
from actstore.errors import ActstoreError
from actstore.search.approximate import ApproximateSearch
from actstore.search.indexing import keep_index
from actstore.search.levels import fit_directions
from actstore.search.table import RowTable, unit
from actstore.split import Split
from tests.bench.common import OUT, report
from tests.bench.search_common import BATCH, DIM, Action, K, bare, bounded_of, held_out, in_turns, synthetic_store

RECALL, CHOSEN_ON = 0.96, 256
DOUBLED = tuple(2**power for power in range(12))  # efforts: cells visited, or candidates of a graph
Values = NDArray[np.float32]


@dataclass(frozen=True)
class Peer:
    """make gives an index of unit rows, from the file where it was built before; search asks it for the K nearest of
    unit queries: (n, dim) and an effort -> rows (n, K). efforts: none where it is exact."""

    name: str
    package: str
    make: Callable[[Values, Path], Any]
    search: Callable[[Any, Values, int], NDArray[Any]]
    efforts: tuple[int, ...] = ()


def main(rows: int, rounds: int) -> None:
    """rounds: 0 builds the indexes, and measures nothing."""
    split = synthetic_store(rows)["train"]
    queries = torch.from_numpy(held_out(rows, 1000))
    engine = bounded_of(split)
    truth = engine.search(queries, 1)[1][:, 0]
    asked = unit(queries).numpy()
    ours: dict[str, Callable[[int], Action]] = {
        "bounded": lambda batch: partial(_run, engine.search, queries[:batch], K),
        "exact": lambda batch: partial(_run, engine.exact.search, queries[:batch], K),
    }
    pq = _our_pq(split, queries)
    found = pq.search(queries[CHOSEN_ON:], 1)[1][:, 0]
    recall = float((found == truth[CHOSEN_ON:]).mean())
    results, lines = [], []
    for what, search, quality in (
        ()
        if not rounds
        else (
            ("ours, exact", ours["exact"], "exact"),
            ("ours, pq", lambda batch: partial(_run, pq.search, queries[:batch], K), f"{recall:.3f}"),
        )
    ):
        _measure(what, quality, search, ours["bounded"], rounds, results, lines)
    values = None
    for peer in _peers(engine.table):
        version = _version(peer.package)
        if version is None:
            lines.append(f"{peer.name}: {peer.package} is not installed")
            continue
        values = _unit_rows(engine.table) if values is None else values
        begin = time.perf_counter()
        index = peer.make(values, OUT / f"peers-{rows}")
        print(f"{peer.name}: ready after {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
        if not rounds:
            continue
        effort, quality = _choose_effort(peer, index, asked, truth)
        name = f"{peer.name} ({peer.package} {version})"
        _measure(name, quality, _asking(peer, index, asked, effort), ours["bounded"], rounds, results, lines)
        del index
    if not rounds:
        return
    report("search-peers", results, ["our bounded search is exact, and no peer's is faster at recall 0.96"])
    print(f"\n{rows:,} x {DIM}, k = {K}, ms/query; in brackets: how many times longer than our bounded search")
    print("| search | recall@1 | batch 32 | processor time | batch 1 | processor time |\n|---|--:|--:|--:|--:|--:|")
    print("\n".join(lines))


def _measure(
    name: str, quality: str, theirs: Callable[[int], Action], ours: Callable[[int], Action], rounds: int,
    results: list[Result], lines: list[str],
) -> None:  # fmt: skip
    cells = []
    for batch in (BATCH, 1):
        used: dict[str, list[float]] = {"ours": [], "theirs": []}
        sides = {"ours": ours(batch), "theirs": theirs(batch)}
        taken = in_turns({side: partial(_use, sides[side], used[side]) for side in sides}, rounds)
        spent = {side: statistics.median(seconds[1:]) for side, seconds in used.items()}  # the first one warms up
        for what, of in (("", taken), (", processor time", spent)):
            mine, other = (1e3 * of[side] / batch for side in ("ours", "theirs"))
            kind = f"bounded, batch {batch}{what}"
            results.append(Result(kind, mine, "ms/query", f"{name}, {quality}", other, other / mine))
            cells.append(f"{other:.2f} ({other / mine:.2g}x)")
    lines.append(f"| {name} | {quality} | {' | '.join(cells)} |")
    print(lines[-1], file=sys.stderr, flush=True)


def _asking(peer: Peer, index: Any, queries: Values, effort: int) -> Callable[[int], Action]:
    return lambda batch: partial(_run, peer.search, index, queries[:batch], effort)


def _use(action: Action, used: list[float]) -> None:
    """Processor seconds of all threads, which other work on the machine changes least."""
    begin = time.process_time()
    action()
    used.append(time.process_time() - begin)


def _run(search: Callable[..., Any], *arguments: Any) -> None:
    search(*arguments)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _choose_effort(peer: Peer, index: Any, queries: Values, truth: NDArray[np.int64]) -> tuple[int, str]:
    """The first effort whose recall is high enough, else the last one; and what it gives for other queries."""

    def recall(effort: int, part: slice) -> float:
        return float((peer.search(index, queries[part], effort)[:, 0] == truth[part]).mean())

    rest = slice(CHOSEN_ON, None)
    if not peer.efforts:
        same = recall(0, rest)
        return 0, "exact" if same == 1 else f"exact but for rounding: {same:.4f}"
    effort = next((some for some in peer.efforts if recall(some, slice(CHOSEN_ON)) >= RECALL), peer.efforts[-1])
    return effort, f"{recall(effort, rest):.3f}"


def _our_pq(split: Split, queries: torch.Tensor) -> ApproximateSearch:
    try:
        return ApproximateSearch.load(split, "pq")
    except ActstoreError:  # not built yet
        return keep_index(split, "pq", queries=queries[:CHOSEN_ON], recall=RECALL)[0]


def _unit_rows(table: RowTable) -> Values:
    values = np.empty((len(table), DIM), np.float32)
    for start in range(0, len(table), 8192):
        values[start : start + 8192] = unit(table.read(start, min(len(table), start + 8192))).numpy()
    return values


def _peers(table: RowTable) -> list[Peer]:
    """Panorama's indexes get the rows turned into their principal directions, which it needs to prune by."""
    cells = f"IVF{max(1, int(np.sqrt(len(table))))}"
    turn = fit_directions(table).T.contiguous().numpy()  # (dim, dim)

    def of_faiss(name: str, key: str, ask: Callable[..., Any] = _ask_faiss, **options: Any) -> Peer:
        return Peer(name, "faiss-gpu", partial(_faiss, key=key, **options), partial(ask, **options), _efforts(key))

    return [
        of_faiss("flat, fp32", "Flat"),
        of_faiss("flat Panorama, fp32, after a PCA", "FlatPanorama16", turn=turn),
        Peer("a product in blocks, fp32", "torch", lambda values, _: torch.from_numpy(values), _ask_torch),
        Peer("exact, fp32", "usearch", lambda values, _: values, _ask_usearch_exactly),
        of_faiss(
            "IVF Panorama, fp32, after a PCA",
            f"{cells},FlatPanorama16",
            partial(_ask_faiss, parameters=_probes),
            turn=turn,
        ),
        of_faiss(
            "IVF-RaBitQ, 1 bit, refined in fp32", f"{cells},RaBitQfs,RFlat", partial(_ask_faiss, parameters=_refined)
        ),
        Peer("HNSW, bf16", "usearch", _usearch, _ask_usearch, DOUBLED[4:]),
        Peer("HNSW, fp32", "hnswlib", _hnswlib, _ask_hnswlib, DOUBLED[4:]),
        Peer("tree and codes, reordered in fp32", "scann", _scann, _ask_scann, DOUBLED),
    ]


def _efforts(key: str) -> tuple[int, ...]:
    return DOUBLED if key.startswith("IVF") else ()


def _faiss(values: Values, folder: Path, key: str, turn: Values | None = None) -> Any:
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    file = folder / f"{key.replace(',', '-')}.faiss"
    if file.exists():
        return faiss.read_index(str(file))
    flat = key == "FlatPanorama16"  # which the factory knows in cells alone
    index = faiss.IndexFlatIPPanorama(DIM, 16) if flat else faiss.index_factory(DIM, key, faiss.METRIC_INNER_PRODUCT)
    some = values[np.sort(np.random.default_rng(0).choice(len(values), min(len(values), 40_000), replace=False))]
    index.train(some if turn is None else some @ turn)
    for start in range(0, len(values), 8192):
        block = values[start : start + 8192]
        index.add(block if turn is None else block @ turn)
    folder.mkdir(parents=True, exist_ok=True)
    faiss.write_index(index, str(file))
    return index


def _probes(effort: int) -> Any:
    import faiss

    return faiss.SearchParametersIVF(nprobe=effort)


def _refined(effort: int) -> Any:
    import faiss

    return faiss.IndexRefineSearchParameters(k_factor=40, base_index_params=_probes(effort))


def _ask_faiss(
    index: Any, queries: Values, effort: int, turn: Values | None = None, parameters: Callable[[int], Any] | None = None
) -> NDArray[Any]:
    directions = queries if turn is None else queries @ turn
    if parameters is None:
        return np.asarray(index.search(directions, K)[1])
    return np.asarray(index.search(directions, K, params=parameters(effort))[1])


def _ask_torch(index: torch.Tensor, queries: Values, effort: int) -> NDArray[Any]:
    return bare(index, torch.from_numpy(queries), K, 8192)().numpy()


def _ask_usearch_exactly(index: Values, queries: Values, effort: int) -> NDArray[Any]:
    from usearch.index import search

    found = search(index, queries, K, "ip", exact=True, threads=torch.get_num_threads())
    return np.asarray(found.keys).reshape(len(queries), K)


def _usearch(values: Values, folder: Path) -> Any:
    from usearch.index import Index

    index, file = Index(ndim=DIM, metric="ip", dtype="bf16"), folder / "hnsw.usearch"
    if file.exists():
        index.load(file)
        return index
    index.add(np.arange(len(values)), values, threads=torch.get_num_threads())
    index.save(file)
    return index


def _ask_usearch(index: Any, queries: Values, effort: int) -> NDArray[Any]:
    index.expansion_search = effort
    found = index.search(queries, K, threads=torch.get_num_threads())
    return np.asarray(found.keys).reshape(len(queries), K)


def _hnswlib(values: Values, folder: Path) -> Any:
    import hnswlib

    index, file = hnswlib.Index("ip", DIM), folder / "hnsw.hnswlib"
    index.set_num_threads(torch.get_num_threads())
    if file.exists():
        index.load_index(str(file), len(values))
        return index
    index.init_index(len(values), ef_construction=128, M=16)
    index.add_items(values)
    index.save_index(str(file))
    return index


def _ask_hnswlib(index: Any, queries: Values, effort: int) -> NDArray[Any]:
    index.set_ef(effort)
    return np.asarray(index.knn_query(queries, K)[0]).astype(np.int64)


def _scann(values: Values, folder: Path) -> Any:
    """Trained anew in every run, in a minute; cells and codes as its documentation recommends."""
    import scann

    cells = max(1, int(np.sqrt(len(values))))
    builder = scann.scann_ops_pybind.builder(values, K, "dot_product")
    tree = builder.tree(num_leaves=cells, num_leaves_to_search=cells // 10, training_sample_size=40_000)
    return tree.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100).build()


def _ask_scann(index: Any, queries: Values, effort: int) -> NDArray[Any]:
    if len(queries) == 1:
        return np.asarray(index.search(queries[0], leaves_to_search=effort)[0])[None]
    return np.asarray(index.search_batched_parallel(queries, leaves_to_search=effort)[0])

"""What is timed, in turns, and the table of it: a backbone, a classifier of predicted parameters (a linear layer), and
searches of every kind.

The "Efficiency Analysis" of Qiao, Liu, Shen and Yuille, CVPR 2018: 6.83 ms per image by parameters at batch 32, and
37.867 ms by nearest neighbours over 45 GB of precomputed features, on a Tesla K40M.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from actstore.compute.device import has_half, synchronise
from actstore.compute.process import Result, seconds
from actstore.progress import human_bytes
from actstore.search import BoundedSearch, ExactSearch, RowTable
from actstore.search.flat import fill_unit, nearest_by_faiss
from actstore.search.indexing import build_index
from actstore.search.ranking import Pairs, rank
from actstore.search.table import parse_k, parse_vectors, unit
from predictor.protocol.results import Results, Table, displayed, read_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WARM_UP, LEAST_RUNS, MOST_RUNS = 1, 3, 50
PAPER_BATCH = 32


@dataclass(frozen=True)
class Part:
    """Something that takes time: a backbone, a classifier, or a search.

    run: a batch of queries (n, dim), or images, -> anything. bytes: memory it holds. recall: of the nearest row,
    where it may be missed. rank: the last of its work, the order of the rows found in float64, alone.
    """

    name: str
    kind: str  # backbone, head or search
    run: Callable[[Tensor], Any]
    bytes: int
    recall: float | None = None
    rank: Callable[[Tensor], Any] | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds per image at a batch size. ranking: those of them that the order of the rows found takes."""

    part: Part
    batch: int
    median: float
    p95: float
    runs: int
    ranking: float | None = None


@dataclass
class Peak:
    """total: resident at most, files that were mapped included. own: what no file stands behind, at most."""

    total: int = 0
    own: int = 0


def measure(
    parts: Sequence[Part], batch: int, inputs: Callable[[Part], Tensor], budget: float, device: torch.device
) -> list[Latency]:
    """Run parts in turns, so that a slow moment of the machine meets all of them. budget: seconds for each of them."""
    times: dict[str, list[float]] = {part.name: [] for part in parts}
    for turn in range(WARM_UP + MOST_RUNS):
        for part in parts:
            taken = times[part.name]
            if len(taken) >= LEAST_RUNS and sum(taken) > budget:
                continue
            took = timed(partial(part.run, inputs(part)[:batch]), device)
            if turn >= WARM_UP or took > budget:  # what is this slow needs no warming up
                taken.append(took)
    return [_summary(part, inputs(part)[:batch], times[part.name], device) for part in parts]


def timed(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds, until the device is done."""

    def wait() -> None:
        run()
        synchronise(device)

    return seconds(wait)


def _summary(part: Part, asked: Tensor, taken: list[float], device: torch.device) -> Latency:
    per_image, ranking = np.array(taken) * 1e3 / len(asked), None
    if part.rank is not None:
        ranks = [timed(partial(part.rank, asked), device) for _ in range(WARM_UP + LEAST_RUNS)]
        ranking = float(np.median(ranks[WARM_UP:])) * 1e3 / len(asked)
    median, late = float(np.median(per_image)), float(np.quantile(per_image, 0.95))
    described = replace(part, run=torch.clone, rank=None)  # figures keep no rows in memory
    return Latency(described, len(asked), median, late, len(taken), ranking)


K = 5  # neighbours: enough for a top-5
_BLOCK = 8192  # rows sent to a device at a time


def backbone_part(module: nn.Module, name: str, device: torch.device) -> Part:
    """The forward pass of images that are decoded already."""
    module = module.eval().to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def run(images: Tensor) -> Tensor:
        with torch.inference_mode(), torch.autocast(device.type, torch.float16, enabled=has_half(device)):
            output: Tensor = module(images.to(device).contiguous(memory_format=torch.channels_last))
            return output

    size = sum(tensor.nbytes for tensor in module.state_dict().values())
    return Part(f"backbone {name}", "backbone", run, size)


def head_part(categories: int, dim: int, device: torch.device) -> Part:
    """The classifier whose rows phi predicted: one product and a top-5. What the rows hold does not matter here."""
    weight, bias = torch.rand(categories, dim, device=device), torch.zeros(categories, device=device)

    def run(queries: Tensor) -> Tensor:
        return torch.addmm(bias, queries.to(device), weight.T).topk(min(K, categories), dim=1).indices

    return Part(f"parametric classifier, {categories:,} categories", "head", run, weight.nbytes + bias.nbytes)


def exact_part(rows: Any) -> Part:
    """All products over the rows as they are stored, fp16 by default; no copy."""
    engine = ExactSearch(rows)
    table = engine.table
    kind = "fp16" if table.dtype == torch.float16 else "fp32"
    size = len(table) * (table.dim * (2 if kind == "fp16" else 4) + 4)
    return _search_part(f"exact NN, ours, {kind} rows", engine, size)


def bounded_part(rows: Any, progress: Callable[[int], None] | None = None) -> Part:
    engine = BoundedSearch.build(rows, progress)
    note = "" if engine.prunes else " (bound does not prune: all products)"
    return _search_part(f"exact NN, ours, bounded{note}", engine, engine.nbytes + _row_bytes(engine.table))


def approximate_part(
    rows: Any, queries: Tensor | None, kind: str = "pq", progress: Callable[[int], None] | None = None
) -> Part:
    """queries: held-out vectors to measure the recall on; without them rows are left out of the index for that."""
    engine = build_index(rows, kind, queries=queries, progress=progress)
    size = engine.nbytes + _row_bytes(engine.table)  # the rows decide in the end
    return _search_part(f"approximate NN, faiss {kind}", engine, size, engine.settings.recall)


def flat_parts(rows: Any) -> list[Part]:
    """What the paper did, faiss, and a product in blocks, over one fp32 copy of unit rows; ties are as they fall."""
    table = RowTable(rows)
    held, k = torch.empty(table.shape), parse_k(K, len(table))
    fill_unit(table, 0, held)

    def directions(queries: Tensor) -> Tensor:
        return unit(parse_vectors(queries, table.dim))

    def multiply_whole(queries: Tensor) -> Any:
        best = (directions(queries) @ held.T).topk(k, dim=1)
        return best.values.numpy(), best.indices.numpy()

    def search(queries: Tensor) -> Any:
        return nearest_by_faiss(directions(queries), held, k)

    def multiply(queries: Tensor) -> Any:
        """With a running top-k."""
        given = directions(queries)
        scores, rows = torch.empty(len(given), 0), torch.empty(len(given), 0, dtype=torch.int64)
        for start in range(0, len(held), _BLOCK):
            block = given @ held[start : start + _BLOCK].T
            best = block.topk(min(k, block.shape[1]), dim=1)
            kept = torch.cat([scores, best.values], 1).topk(min(k, scores.shape[1] + best.values.shape[1]), dim=1)
            rows = torch.cat([rows, best.indices + start], 1).gather(1, kept.indices)
            scores = kept.values
        return scores.numpy(), rows.numpy()

    runs = {
        "NN as the paper has it: one product over all fp32 rows": multiply_whole,
        "exact NN, faiss flat (knn, the search of IndexFlatIP), fp32 rows": search,
        "exact NN, torch in blocks, fp32 rows": multiply,
    }
    return [Part(name, "search", run, held.nbytes) for name, run in runs.items()]


def gpu_part(rows: Any, device: torch.device) -> Part:
    from actstore.search.flat import GpuSearch

    engine = GpuSearch(rows, device=device.index or 0)
    return _search_part("exact NN, faiss on the GPU, fp16", engine, _row_bytes(engine.table), ranked=2 * K + 32)


def product_part(rows: Any, device: torch.device) -> Part:
    """torch.matmul over unit rows that a device holds, and a top-k: fp16 on a GPU, fp32 elsewhere."""
    table = RowTable(rows)
    held = torch.empty(table.shape, dtype=torch.float16 if has_half(device) else torch.float32, device=device)
    for start in range(0, len(table), _BLOCK):
        held[start : start + _BLOCK] = unit(table.read(start, min(len(table), start + _BLOCK))).to(device)

    def run(queries: Tensor) -> Tensor:
        scores = torch.matmul(unit(queries).to(device, held.dtype), held.T)
        return scores.topk(min(K, len(held)), dim=1).indices.cpu()

    kind = str(held.dtype).removeprefix("torch.")
    return Part(f"NN as the paper has it: torch.matmul on {device.type}, {kind} rows", "search", run, held.nbytes)


def _search_part(name: str, engine: Any, size: int, recall: float | None = None, ranked: int = K) -> Part:
    """ranked: pairs of each query whose order is decided in float64, which other searches leave out."""

    def order(queries: Tensor) -> None:
        count = min(ranked, len(engine.table))
        rows = torch.arange(len(queries) * count).numpy() * 9973 % len(engine.table)  # anywhere in memory
        owners = torch.arange(len(queries)).repeat_interleave(count).numpy()
        pairs = Pairs(rows, owners, torch.zeros(len(rows)).numpy())
        rank(engine.table, queries, pairs, min(K, count), "cosine")

    return Part(name, "search", lambda queries: engine.search(queries, K), size, recall, order)


def _row_bytes(table: RowTable) -> int:
    return len(table) * table.dim * 2


def paper_figures() -> dict[str, float]:
    """nn and parametric: milliseconds per image. memory: bytes. without_features: hours of an image by nearest
    neighbours where all images go through the network first."""
    values = {row["what"]: float(row["value"]) for row in read_table("efficiency")}
    return {
        "nn": values["NN and Triplet inference per image"],
        "parametric": values["parametric inference per image (batch 32)"],
        "memory": values["NN memory"] * 1e9,
        "without_features": values["NN inference per image without precomputed features"],
    }


def totals(latencies: Sequence[Latency], batch: int) -> list[tuple[Latency, float]]:
    """Each head or search at this batch size with the backbone's time added, the parametric one first."""
    mine = [latency for latency in latencies if latency.batch == batch]
    backbone = sum(latency.median for latency in mine if latency.part.kind == "backbone")
    return [
        (latency, backbone + latency.median)
        for kind in ("head", "search")
        for latency in mine
        if latency.part.kind == kind
    ]


def has_network(latencies: Sequence[Latency]) -> bool:
    """Whether a network was timed, as it was in the paper's figures."""
    return any(latency.part.kind == "backbone" for latency in latencies)


def to_results(latencies: Sequence[Latency]) -> list[dict[str, Any]]:
    """{name, value, unit, peer, peer_value, ratio} per figure; peers are the parametric classifier and the paper."""
    paper, results = paper_figures(), []
    heads = {latency.batch: latency.median for latency in latencies if latency.part.kind == "head"}
    for latency in latencies:
        name, fast = f"{latency.part.name}, batch {latency.batch}", heads[latency.batch]
        with_peer = latency.part.kind == "search" and not has_network(latencies)
        peer = ("parametric", fast, latency.median / fast) if with_peer else (None,) * 3
        extra = {"batch": latency.batch, "p95": latency.p95, "bytes": latency.part.bytes,
                 "recall": latency.part.recall, "runs": latency.runs, "ranking": latency.ranking}  # fmt: skip
        results.append(Result(name, latency.median, "ms/image", *peer).to_json() | extra | {"kind": latency.part.kind})
    for batch in dict.fromkeys(latency.batch for latency in latencies) if has_network(latencies) else ():
        (head, fast), *searches = totals(latencies, batch)
        in_paper = batch == PAPER_BATCH
        peer = ("paper, Tesla K40M", paper["parametric"], fast / paper["parametric"]) if in_paper else (None,) * 3
        whole = [
            (head, fast, peer),
            *((latency, slow, ("parametric", fast, slow / fast)) for latency, slow in searches),
        ]
        for latency, total, peer_figures in whole:
            name = f"image to category, {latency.part.name}, batch {batch}"
            results.append(
                Result(name, total, "ms/image", *peer_figures).to_json() | {"batch": batch, "kind": latency.part.kind}
            )
    return results


OF_WHOLE = ("with the backbone", "x parametric with it")
COLUMNS = ("part", "batch", "ms/image", "p95", "of which ranking", "memory GB", "recall@1", "x parametric", *OF_WHOLE)


def table_lines(latencies: Sequence[Latency]) -> list[list[str]]:
    """Of COLUMNS: every part at every batch size, then the paper's; without a network not OF_WHOLE, nor the paper's."""
    paper, lines = paper_figures(), []
    for batch in dict.fromkeys(latency.batch for latency in latencies):
        whole = {latency.part.name: total for latency, total in totals(latencies, batch)}
        mine = [latency for latency in latencies if latency.batch == batch]
        alone = next(latency.median for latency in mine if latency.part.kind == "head")
        fast = next(iter(whole.values()))
        for latency in mine:
            part, total = latency.part, whole.get(latency.part.name)
            lines.append([
                part.name, str(batch), f"{latency.median:,.3f}", f"{latency.p95:,.3f}",
                "" if latency.ranking is None else f"{latency.ranking:,.3f}", f"{part.bytes / 1e9:,.2f}",
                "" if part.recall is None else f"{part.recall:.3f}",
                "" if total is None else f"{latency.median / alone:,.1f}",
                "" if total is None else f"{total:,.2f}", "" if total is None else f"{total / fast:,.2f}",
            ])  # fmt: skip
    if not has_network(latencies):
        return [line[: -len(OF_WHOLE)] for line in lines]
    ratio = paper["nn"] / paper["parametric"]
    empty = [str(PAPER_BATCH), "", "", ""]
    return [
        *lines,
        ["paper, parametric (Tesla K40M)", *empty, "", "", "", f"{paper['parametric']:.2f}", "1.00"],
        ["paper, NN (Tesla K40M)", *empty, f"{paper['memory'] / 1e9:.0f}", "", "", f"{paper['nn']:.3f}",
         f"{ratio:.2f}"],
    ]  # fmt: skip


class InferenceResults(Results):
    """Of `baselines.time_inference`: milliseconds of every part at every batch size, and what the run needed."""

    def __init__(
        self, latencies: Sequence[Latency], shape: tuple[int, int], left_out: Sequence[str], peak: Peak, title: str
    ) -> None:
        super().__init__(to_results(latencies))
        self.latencies, self.shape, self.left_out, self.peak, self.title = latencies, shape, left_out, peak, title

    def tables(self, wide: bool = False) -> list[Table]:
        return [Table(["", *self._columns[1:]], table_lines(self.latencies), title=self.title)]

    @property
    def _columns(self) -> tuple[str, ...]:
        return COLUMNS if has_network(self.latencies) else COLUMNS[: -len(OF_WHOLE)]

    def notes(self, wide: bool = False) -> list[str]:
        """What a plain implementation needs here, what was left out, and the memory of the run."""
        paper, (count, dim) = paper_figures(), self.shape
        lines = [
            f"Features of {count:,} images in fp32: {human_bytes(4 * count * dim)}, in fp16 "
            f"{human_bytes(2 * count * dim)} (paper: {paper['memory'] / 1e9:.0f} GB)."
        ]
        if backbones := [latency for latency in self.latencies if latency.part.kind == "backbone"]:
            fastest = min(backbones, key=lambda latency: latency.median)
            lines.append(
                f"Without stored features one image waits for all {count:,} to pass the network: "
                f"{count * fastest.median / 3.6e6:,.1f} hours, an estimate from {fastest.median:,.1f} ms each at batch "
                f"{fastest.batch} (paper: {paper['without_features']:g} hours)."
            )
        lines += [f"Left out: {line}." for line in self.left_out]
        total, own = self.peak.total / 1e9, self.peak.own / 1e9
        return [
            *lines,
            f"Peak memory of the run: {total:.2f} GB resident, of which {own:.2f} GB at most belong to no file.",
        ]

    def to_csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self._columns, *table_lines(self.latencies)])
        return text.getvalue()

    def plot(self) -> Figure:
        """Bars: from image to category by predicted parameters, and by each search."""
        from predictor.figures.style import draw_inference

        return displayed(draw_inference(self.records, self.title))

"""What recognising one image costs: by predicted parameters (a linear layer), and by nearest neighbours.

The "Efficiency Analysis" of Qiao, Liu, Shen and Yuille, CVPR 2018: 6.83 ms per image by parameters at batch 32, and
37.867 ms by nearest neighbours over 45 GB of precomputed features, on a Tesla K40M.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from actstore.bench.measure import seconds
from actstore.compute.device import has_half, synchronise
from actstore.search import BoundedSearch, ExactSearch
from actstore.search.flat import FlatSearch
from actstore.search.indexing import build_index

K = 5  # neighbours: enough for a top-5
WARM_UP, LEAST_RUNS, MOST_RUNS = 1, 3, 50


@dataclass(frozen=True)
class Part:
    """Something that takes time: a backbone, a classifier, or a search.

    run: a batch of queries (n, dim), or images, -> anything. bytes: memory it holds. recall: of the nearest row,
    where it may be missed.
    """

    name: str
    kind: str  # backbone, head or search
    run: Callable[[Tensor], Any]
    bytes: int
    recall: float | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds per image at a batch size."""

    part: Part
    batch: int
    median: float
    p95: float
    runs: int


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
    return [_summary(part, batch, times[part.name]) for part in parts]


def timed(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds, until the device is done."""

    def wait() -> None:
        run()
        synchronise(device)

    return seconds(wait)


def _summary(part: Part, batch: int, taken: list[float]) -> Latency:
    per_image = np.array(taken) * 1e3 / batch
    return Latency(part, batch, float(np.median(per_image)), float(np.quantile(per_image, 0.95)), len(taken))


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
    kind = "fp16" if table.read(0, 1).dtype == torch.float16 else "fp32"
    size = table.shape[0] * (table.shape[1] * (2 if kind == "fp16" else 4) + 4)
    return Part(f"exact NN, torch, {kind} rows", "search", lambda queries: engine.search(queries, K), size)


def flat_parts(rows: Any) -> list[Part]:
    """faiss's flat index over unit rows in fp32, and a plain torch product over the same memory."""
    flat = FlatSearch(rows)
    return [
        Part("exact NN, torch, fp32 copy", "search", lambda queries: flat.multiply(queries, K), flat.nbytes),
        Part("exact NN, faiss IndexFlatIP, fp32 copy", "search", lambda queries: flat.search(queries, K), flat.nbytes),
    ]


def bounded_part(rows: Any, progress: Callable[[int], None] | None = None) -> Part:
    engine = BoundedSearch.build(rows, progress)
    own = engine.nbytes + engine.table.shape[0] * engine.table.shape[1] * 2
    note = "" if engine.prunes else " (bound does not prune: all products)"
    return Part(f"exact NN, bounded{note}", "search", lambda queries: engine.search(queries, K), own)


def approximate_part(
    rows: Any, queries: Tensor | None, kind: str = "pq", progress: Callable[[int], None] | None = None
) -> Part:
    """queries: held-out vectors to measure the recall on; without them rows are left out of the index for that."""
    engine = build_index(rows, kind, queries=queries, progress=progress)
    own = engine.nbytes + engine.table.shape[0] * engine.table.shape[1] * 2  # the rows decide in the end
    name = f"approximate NN, faiss {kind}"
    return Part(name, "search", lambda vectors: engine.search(vectors, K), own, engine.settings.recall)


def gpu_part(rows: Any, device: torch.device) -> Part:
    from actstore.search.gpu import GpuSearch

    engine = GpuSearch(rows, device=device.index or 0)
    size = engine.table.shape[0] * engine.table.shape[1] * 2
    return Part("exact NN, faiss on the GPU, fp16", "search", lambda queries: engine.search(queries, K), size)

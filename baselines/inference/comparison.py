"""The whole comparison within the memory that is there: parts are made, timed in turns, and released group by group.

What a part needs is known before it is made. One that does not fit is left out, and named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from actstore.backbones.construction import construct
from baselines.inference import parts
from baselines.inference.latency import Latency, Part, measure
from baselines.inference.memory import RESERVE, Peak, available_memory, watch_memory
from baselines.inference.rows import BenchRows, Progress, Say

_INDEX_SHARE = 0.5  # of the rows in fp16: an index with what it is fitted on stays below
_APPROXIMATE_SHARE = 0.3
FEWEST_INDEXED = 1000  # rows of an approximate index


@dataclass(frozen=True)
class Wanted:
    """What is compared. backbone: its name, or none. approximate: a kind of index, or none. budget: seconds of each
    figure."""

    batches: Sequence[int] = (1, 32)
    categories: int = 1000
    backbone: str = "resnet50"
    approximate: str = "pq"
    fp32: bool = True
    budget: float = 6.0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass(frozen=True)
class Comparison:
    """latencies: of all parts, in the order of a table. shape: of the rows. left_out: of the parts, what did not
    fit."""

    latencies: list[Latency]
    shape: tuple[int, int]
    left_out: list[str]
    peak: Peak


Make = Callable[[], list[Part]]
Group = list[tuple[str, int, Make]]  # name, bytes it needs, how it is made


def compare(data: BenchRows, wanted: Wanted, say: Say, progress: Progress) -> Comparison:
    """Everything that was wanted and fits, at each batch size."""
    network = None if wanted.backbone == "none" else construct(wanted.backbone, 0)
    side = 1 if network is None else network.transform.crop
    images = torch.rand(max(wanted.batches), 3, side, side, generator=torch.Generator().manual_seed(0))
    latencies: list[Latency] = []
    left_out: list[str] = []
    if wanted.device.type == "cpu" and wanted.approximate != "none" and data.shape[0] < FEWEST_INDEXED:
        left_out.append(f"approximate search: an index needs {FEWEST_INDEXED:,} rows, there are {data.shape[0]:,}")
    with watch_memory() as peak:
        first = [] if network is None else [parts.backbone_part(network.module, wanted.backbone, wanted.device)]
        first.append(parts.head_part(wanted.categories, data.shape[1], wanted.device))
        for group in _groups(data, wanted, progress):
            made = [*first, *_make(group, left_out, say)]
            for batch in wanted.batches:
                say(f"measuring {len(made)} parts at batch {batch}")
                inputs = lambda part: images if part.kind == "backbone" else data.queries  # noqa: E731
                latencies += measure(made, batch, inputs, wanted.budget, wanted.device)
            first = []
            made.clear()  # what was measured is released before the next is made
    return Comparison(_in_order(latencies), data.shape, left_out, peak)


def _make(group: Group, left_out: list[str], say: Say) -> Iterator[Part]:
    for name, needed, make in group:
        if needed + RESERVE > (free := available_memory()):
            line = f"{name} left out: it takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
            left_out.append(line)
            say(line)
        else:
            yield from make()


def _groups(data: BenchRows, wanted: Wanted, progress: Progress) -> list[Group]:
    """Parts that are in memory together. The fp32 copy, twice the rows, is never there beside the indexes."""
    count, dim = data.shape
    rows, half = data.rows, 2 * count * dim
    if wanted.device.type != "cpu":
        on_card: Group = [("torch.matmul on the device", RESERVE, lambda: [parts.product_part(rows, wanted.device)])]
        if wanted.device.type == "cuda":
            on_card.append(("faiss on the GPU", RESERVE, lambda: [parts.gpu_part(rows, wanted.device)]))
        return [on_card]

    def bounded() -> list[Part]:
        with progress("bounded index", count) as bar:
            return [parts.bounded_part(rows, bar.update)]

    def approximate() -> list[Part]:
        with progress(f"{wanted.approximate} index", count) as bar:
            return [parts.approximate_part(rows, data.queries, wanted.approximate, bar.update)]

    ours: Group = [
        ("exact search over fp16 rows", 4 * count, lambda: [parts.exact_part(rows)]),
        ("bounded search", int(_INDEX_SHARE * half), bounded),
    ]
    if wanted.approximate != "none" and count >= FEWEST_INDEXED:
        ours.append((f"approximate search by {wanted.approximate}", int(_APPROXIMATE_SHARE * half), approximate))
    plain: Group = [("searches over an fp32 copy", 2 * half, lambda: parts.flat_parts(rows))]
    return [ours, plain] if wanted.fp32 else [ours]


def _in_order(latencies: Sequence[Latency]) -> list[Latency]:
    """By batch; then the backbone, the classifier, plain searches, ours, approximate ones."""
    batches = list(dict.fromkeys(latency.batch for latency in latencies))

    def place(latency: Latency) -> tuple[int, int]:
        name, kind = latency.part.name, latency.part.kind
        group = 0 if kind == "backbone" else 1 if kind == "head" else 2
        if group == 2:
            group += 2 * ("ours" in name) + 4 * (latency.part.recall is not None)
        return batches.index(latency.batch), group

    return sorted(latencies, key=place)

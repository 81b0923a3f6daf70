"""The paper's comparison of inference times in one call: predicted parameters against nearest neighbours.

Within the memory that is there: parts are made, timed in turns, and released group by group. What a part needs is known
before it is made; one that does not fit is left out, and named.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import actstore
from actstore import ActivationStore
from actstore.backbones.construction import construct
from actstore.compute.device import name_device, parse_device
from actstore.errors import InvalidInputError
from actstore.progress import bar, note
from baselines.inference import parts
from baselines.inference.latency_table import InferenceResults
from baselines.inference.parts import Latency, Part, measure
from baselines.inference.rows import (
    RESERVE,
    BenchRows,
    Peak,
    available_memory,
    fitting_size,
    generated_rows,
    stored_rows,
    watch_memory,
)

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


def time_inference(
    store: ActivationStore | str | Path | None = None,
    synthetic: str | None = None,
    *,
    split: str = "train",
    batches: Sequence[int] = (1, 32),
    categories: int = 1000,
    backbone: str = "resnet50",
    approximate: str = "pq",
    fp32: bool = True,
    seconds: float = 6.0,
    threads: int | None = None,
    device: str = "cpu",
    progress: bool | None = None,
) -> InferenceResults:
    """Time the way from image to category: by predicted parameters, and by nearest neighbours of every kind.

    The paper compares 6.83 ms with 37.867 ms and 45 GB. What does not fit into memory is left out, and named in the
    notes of the result.

    Args:
        store: a store whose rows are searched, or its path.
        synthetic: without a store, how many rows to generate, as "1200000x2048"; by default what fits into memory.
        split: name of the split.
        batches: how many images are classified at once.
        categories: how many categories the classifier has.
        backbone: the network whose time is added, or "none".
        approximate: a kind of index, or "none".
        fp32: also time what the paper did, and the flat search of faiss, on rows of 4 bytes a value.
        seconds: how long each figure is measured.
        threads: of the processor, by default all.
        device: "cpu", "cuda", "cuda:1" or "auto".
        progress: None shows a bar on a terminal and in a notebook, False none, True also prints lines into a log.

    Returns:
        Milliseconds and memory of every way.

    Raises:
        InvalidInputError: a store and a number of rows were both given.
    """
    place = parse_device(device)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    rows = _rows(store, synthetic, split, progress)
    wanted = Wanted(batches, categories, backbone, approximate, fp32, seconds, place)
    machine = name_device(place) or f"{platform.machine()} CPU, no GPU used"
    title = f"{rows.what}; {torch.get_num_threads()} threads, {machine}"
    return InferenceResults(compare(rows, wanted, progress), title)


def _rows(
    store: ActivationStore | str | Path | None, synthetic: str | None, split: str, progress: bool | None
) -> BenchRows:
    if store is not None and synthetic is not None:
        raise InvalidInputError("rows come from a store or are generated (synthetic); give one of both")
    if store is not None:
        return stored_rows(store if isinstance(store, ActivationStore) else actstore.open(store), split)
    if synthetic is None:
        return generated_rows(*fitting_size(available_memory()), progress)
    match = re.fullmatch(r"(\d+)x(\d+)", synthetic)
    if match is None:
        raise InvalidInputError(f"generated rows are named as ROWSxDIM, such as 1200000x2048, got {synthetic!r}")
    return generated_rows(int(match[1]), int(match[2]), progress)


def compare(data: BenchRows, wanted: Wanted, progress: bool | None = None) -> Comparison:
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
            made = [*first, *_make(group, left_out, progress)]
            for batch in wanted.batches:
                note(f"measuring {len(made)} parts at batch {batch}", progress)
                inputs = lambda part: images if part.kind == "backbone" else data.queries  # noqa: E731
                latencies += measure(made, batch, inputs, wanted.budget, wanted.device)
            first = []
            made.clear()  # what was measured is released before the next is made
    return Comparison(_in_order(latencies), data.shape, left_out, peak)


def _make(group: Group, left_out: list[str], progress: bool | None) -> Iterator[Part]:
    for name, needed, make in group:
        if needed + RESERVE > (free := available_memory()):
            line = f"{name} left out: it takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
            left_out.append(line)
            note(line, progress)
        else:
            yield from make()


def _groups(data: BenchRows, wanted: Wanted, progress: bool | None = None) -> list[Group]:
    """Parts that are in memory together. The fp32 copy, twice the rows, is never there beside the indexes."""
    count, dim = data.shape
    rows, half = data.rows, 2 * count * dim
    if wanted.device.type != "cpu":
        on_card: Group = [("torch.matmul on the device", RESERVE, lambda: [parts.product_part(rows, wanted.device)])]
        if wanted.device.type == "cuda":
            on_card.append(("faiss on the GPU", RESERVE, lambda: [parts.gpu_part(rows, wanted.device)]))
        return [on_card]

    def bounded() -> list[Part]:
        with bar("bounded index", count, "rows", progress) as done:
            return [parts.bounded_part(rows, done.update)]

    def approximate() -> list[Part]:
        with bar(f"{wanted.approximate} index", count, "rows", progress) as done:
            return [parts.approximate_part(rows, data.queries, wanted.approximate, done.update)]

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

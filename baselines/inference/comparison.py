"""The paper's comparison of inference times in one call: predicted parameters against nearest neighbours.

Within the memory that is there: parts are made, timed in turns, and released group by group. What a part needs is known
before it is made; one that does not fit is left out, and named.
"""

from __future__ import annotations

import os
import platform
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import actstore
from actstore import ActivationStore
from actstore.backbones.construction import construct, is_ours
from actstore.backbones.network import Construction
from actstore.compute.device import name_device, parse_device
from actstore.compute.process import peak_memory
from actstore.compute.tensors import borrow
from actstore.errors import InvalidInputError
from actstore.progress import bar, human_bytes, note
from actstore.split import Split
from actstore.streams.sampling import generator
from actstore.tables.row_source import SyntheticSpec
from baselines.inference import latency as timing
from baselines.inference.latency import InferenceResults, Latency, Part, Peak
from predictor.protocol.setting import find_test_split

RESERVE = 1 << 30  # bytes that are left to everything else: libraries, samples that an index is fitted on
_EVERY = 0.2  # seconds between two looks
_CONTROL_GROUP = Path("/sys/fs/cgroup")
PAPER_SIZE = (1_200_000, 2048)
QUERIES = 64
_INDEX_SHARE = 0.5  # of the rows in fp16: an index with what it is fitted on stays below
_APPROXIMATE_SHARE = 0.3
FEWEST_INDEXED = 1000  # rows of an approximate index


Make = Callable[[], list[Part]]
Group = list[tuple[str, int, Make]]  # name, bytes it needs, how it is made


def time_inference(
    store: ActivationStore | str | Path | None = None,
    synthetic: str | None = None,
    *,
    split: str = "train",
    batches: Sequence[int] = (1, 32),
    categories: int = 1000,
    backbone: str | None = None,
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
        backbone: the network whose time is added, or "none"; by default the one that made the store, where it is one of
            ours, else "resnet50".
        approximate: a kind of index, or "none".
        fp32: also time what the paper did, and the flat search of faiss, on rows of 4 bytes a value.
        seconds: how long each figure is measured.
        threads: of the processor, by default as many as torch uses.
        device: "cpu", "cuda", "cuda:1" or "auto".
        progress: None shows a bar on a terminal and in a notebook, False none, True logs a line every 20 seconds.

    Returns:
        Milliseconds and memory of every way.

    Raises:
        InvalidInputError: a store and a number of rows were both given.
    """
    place = parse_device(device)
    torch.set_num_threads(threads or torch.get_num_threads())
    if store is not None and synthetic is not None:
        raise InvalidInputError("rows come from a store or are generated (synthetic); give one of both")
    opened = store if store is None or isinstance(store, ActivationStore) else actstore.open(store)
    backbone = backbone or ("resnet50" if opened is None else network_name(opened[split]))
    network = None if backbone == "none" else construct(backbone)  # a wrong name is told before rows are made
    if opened is not None:
        rows = stored_rows(opened, split)
    elif synthetic is None:
        rows = generated_rows(*fitting_size(available_memory()), progress)
    elif match := re.fullmatch(r"(\d+)x(\d+)", str(synthetic)):
        rows = generated_rows(int(match[1]), int(match[2]), progress)
    else:
        raise InvalidInputError(f"generated rows are named as ROWSxDIM, such as 1200000x2048, got {synthetic!r}")
    machine = name_device(place) or f"{platform.machine()} CPU, no GPU used"
    title = f"{rows.what}; {torch.get_num_threads()} threads, {machine}"
    return compare(rows, batches, categories, network, approximate, fp32, seconds, place, title, progress)


def network_name(rows: Split) -> str:
    """The one that made them, where it is one of ours; else the paper's, as no other code is run for a time."""
    named = rows.spec.provenance.get("backbone")
    return str(named) if is_ours(named) else "resnet50"


def compare(
    data: BenchRows,
    batches: Sequence[int],
    categories: int,
    network: Construction | None,
    approximate: str,
    fp32: bool = True,
    budget: float = 6.0,
    device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
    title: str = "",
    progress: bool | None = None,
) -> InferenceResults:
    """Everything that is wanted and fits, at each batch size. network: whose time is added. budget: seconds of each
    figure."""
    channels, side = (3, 1) if network is None else (network.transform.channels, network.transform.crop)
    images = torch.rand(max(batches), channels, side, side, generator=torch.Generator().manual_seed(0))
    latencies: list[Latency] = []
    left_out: list[str] = []
    if device.type == "cpu" and approximate != "none" and data.shape[0] < FEWEST_INDEXED:
        left_out.append(f"approximate search: an index needs {FEWEST_INDEXED:,} rows, there are {data.shape[0]:,}")
    with watch_memory() as peak:
        first = [] if network is None else [timing.backbone_part(network.module, network.name, device)]
        first.append(timing.head_part(categories, data.shape[1], device))
        for group in _groups(data, approximate, fp32, device, progress):
            made = [*first, *_make(group, left_out, progress)]
            for batch in batches:
                note(f"measuring {len(made)} parts at batch {batch}", progress)
                inputs = lambda part: images if part.kind == "backbone" else data.queries  # noqa: E731
                latencies += timing.measure(made, batch, inputs, budget, device)
            first = []
            made.clear()  # what was measured is released before the next is made
    return InferenceResults(_in_order(latencies), data.shape, left_out, peak, title)


def _make(group: Group, left_out: list[str], progress: bool | None) -> Iterator[Part]:
    for name, needed, make in group:
        if needed + RESERVE > (free := available_memory()):
            line = f"{name} left out: it takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
            left_out.append(line)
            note(line, progress)
        else:
            yield from make()


def _groups(data: BenchRows, approximate: str, fp32: bool, device: torch.device, progress: bool | None) -> list[Group]:
    """Parts that are in memory together. The fp32 copy, twice the rows, is never there beside the indexes."""
    count, dim = data.shape
    rows, half = data.rows, 2 * count * dim
    if device.type != "cpu":
        on_card: Group = [("torch.matmul on the device", RESERVE, lambda: [timing.product_part(rows, device)])]
        if device.type == "cuda":
            on_card.append(("faiss on the GPU", RESERVE, lambda: [timing.gpu_part(rows, device)]))
        return [on_card]

    def with_bar(name: str, make: Callable[[Callable[[int], None]], Part]) -> Make:
        def made() -> list[Part]:
            with bar(f"{name} index", count, "rows", progress) as done:
                return [make(done.update)]

        return made

    ours: Group = [
        ("exact search over fp16 rows", 4 * count, lambda: [timing.exact_part(rows)]),
        ("bounded search", int(_INDEX_SHARE * half), with_bar("bounded", lambda done: timing.bounded_part(rows, done))),
    ]
    if approximate != "none" and count >= FEWEST_INDEXED:
        make = with_bar(approximate, lambda done: timing.approximate_part(rows, data.queries, approximate, done))
        ours.append((f"approximate search by {approximate}", int(_APPROXIMATE_SHARE * half), make))
    plain: Group = [("searches over an fp32 copy", 2 * half, lambda: timing.flat_parts(rows))]
    return [ours, plain] if fp32 else [ours]


def _in_order(latencies: Sequence[Latency]) -> list[Latency]:
    """By batch; then the backbone, the classifier, plain searches, ours, approximate ones."""
    batches = list(dict.fromkeys(latency.batch for latency in latencies))

    def place(latency: Latency) -> tuple[int, int]:
        name, kind = latency.part.name, latency.part.kind
        of_search = 2 * ("ours" in name) + 4 * (latency.part.recall is not None)
        return batches.index(latency.batch), {"backbone": 0, "head": 1}.get(kind, 2 + of_search)

    return sorted(latencies, key=place)


def available_memory() -> int:
    """Bytes that can be had without swapping, by this machine and by the limit of a container."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    free = _kilobytes(info, "MemAvailable") * 1024
    with suppress(OSError, ValueError):  # no such limit
        most, used = (int((_CONTROL_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, most - used)
    return free


@contextmanager
def watch_memory() -> Iterator[Peak]:
    """The peak of this process while the block runs; both are filled in when it ends."""
    peak, stopped = Peak(), threading.Event()

    def look() -> None:
        while True:
            peak.own = max(peak.own, own_memory())
            if stopped.wait(_EVERY):
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        stopped.set()
        watcher.join()
        peak.total = peak_memory()


def own_memory() -> int:
    """Bytes of this process that no file stands behind: what only its end gives back."""
    status = Path("/proc/self/status")
    return _kilobytes(status, "RssAnon") * 1024 if status.exists() else peak_memory()


def _kilobytes(path: Path, name: str) -> int:
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1])


@dataclass(frozen=True)
class BenchRows:
    """rows: a split, or a (n, dim) float16 tensor. queries: (QUERIES, dim) float32. what: both in words."""

    rows: Split | Tensor
    queries: Tensor
    what: str

    @property
    def shape(self) -> tuple[int, int]:
        count, dim = self.rows.shape
        return count, dim


def stored_rows(store: ActivationStore, split: str) -> BenchRows:
    """Queries from val or test where the store has one; else from the rows themselves."""
    rows = store[split]
    held = find_test_split(store, rows.name) or rows
    chosen = generator(0, 0).choice(len(held), min(QUERIES, len(held)), replace=False)
    queries = borrow(held.take(chosen)).float()
    if len(queries) < QUERIES:
        queries = torch.cat([queries] * -(-QUERIES // len(queries)))[:QUERIES]
    return BenchRows(rows, queries, f"{len(rows):,} x {rows.dim} rows of {rows.path}, queries from {held.name}")


def fitting_size(free: int) -> tuple[int, int]:
    """As many rows as the paper has, or as fit with their fp32 copy and some room."""
    count, dim = PAPER_SIZE
    return max(1, min(count, (free - 2 * RESERVE) // (dim * (2 + 4)))), dim


def generated_rows(count: int, dim: int, progress: bool | None = None) -> BenchRows:
    """fp16 rows in memory, and queries drawn with them but not among them."""
    free, wanted = available_memory(), 2 * (count + QUERIES) * dim
    if wanted + RESERVE > free:
        raise InvalidInputError(
            f"{count:,} x {dim} rows take {wanted / 1e9:.1f} GB in fp16, and {free / 1e9:.1f} GB are free; "
            "ask for fewer rows"
        )
    note(f"generating {count:,} x {dim} rows in memory, {human_bytes(wanted)}", progress)
    rows = torch.empty(count + QUERIES, dim, dtype=torch.float16)
    source, done = SyntheticSpec(count + QUERIES, dim, shuffled=True).table().activations, 0
    with bar("generate", count + QUERIES, "rows", progress) as done_rows:
        for block in source.blocks(0, count + QUERIES):
            rows[done : done + len(block)] = torch.from_numpy(block)
            done += len(block)
            done_rows.update(len(block))
    return BenchRows(rows[:count], rows[count:].float(), f"{count:,} x {dim} generated rows")

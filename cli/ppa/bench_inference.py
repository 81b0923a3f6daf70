"""`ppa bench-inference`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actstore.spec import INDEX_KINDS
from cli.filekinds import BENCH, FIGURE
from cli.group import emit, example, human_bytes, json_option
from cli.options import FILE, Place, chart_option, device_option, find_store, store_option, threads_option
from cli.outputs import claim
from cli.progress import progress

if TYPE_CHECKING:
    from torch import Tensor

    from baselines.inference.latency import Latency, Part

PAPER_SIZE = (1_200_000, 2048)
QUERIES = 64


@click.command(
    epilog=example(
        "ppa bench-inference",
        "ppa bench-inference --store imagenet.zarr --chart inference.png",
        "ppa bench-inference --synthetic 1200000x2048 --batch 1 --batch 32 --json",
        "ppa bench-inference --store imagenet.zarr --device cuda",
    )
)
@store_option("Search its rows.  [default: $ACTSTORE, or the one *.zarr here; where there is none, generated rows]")
@click.option("--split", default="train", show_default=True)
@click.option("--synthetic", metavar="ROWSxDIM", help="Generate rows that resemble a ResNet-50's, in memory.  "
              "[default without a store: 1200000x2048, or what fits]")  # fmt: skip
@click.option("--batch", "batches", type=click.IntRange(1), multiple=True, default=(1, 32), show_default=True)
@click.option("--categories", type=click.IntRange(2), default=1000, show_default=True, help="Of the classifier.")
@click.option("--backbone", default="resnet50", show_default=True,
              help="Its time alone; weights do not matter. none: skip.")  # fmt: skip
@click.option("--approximate", type=click.Choice([*INDEX_KINDS, "none"]), default="pq", show_default=True)
@click.option("--fp32/--no-fp32", default=None,
              help="faiss's flat index, and torch over the same 4 bytes a value.  [default: where memory allows]"
              )  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=6, show_default=True,
              help="For each figure, and at least three runs.")  # fmt: skip
@threads_option
@device_option("cpu", "cpu or cuda.")
@chart_option
@click.option("--out", type=FILE, help="Also write the JSON to a file.")
@json_option
def bench_inference(
    store: Place | None, split: str, synthetic: str | None, batches: tuple[int, ...], categories: int, backbone: str,
    approximate: str, fp32: bool | None, seconds: float, threads: int | None, device: str, chart: Path | None,
    out: Path | None,
) -> None:  # fmt: skip
    """Milliseconds from image to category: by predicted parameters, and by nearest neighbours of every kind.

    The paper's 6.83 ms against 37.867 ms and 45 GB, on this machine. Parts take turns; median and 95th percentile
    per image; the rows and what every search needs are in memory before the clock starts.
    """
    import torch

    from actstore.backbones.construction import construct
    from actstore.compute.device import parse_device
    from actstore.storage.atomic_file import write_atomic
    from baselines.inference.latency import backbone_part, measure
    from baselines.inference.latency_table import to_markdown, to_results

    claim((chart, FIGURE), (out, BENCH), inputs=[store])
    place = parse_device(device)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    rows, queries, what = choose_rows(store, split, synthetic)
    network = None if backbone == "none" else construct(backbone, 0)
    side = 1 if network is None else network.transform.crop
    images = torch.rand(max(batches), 3, side, side, generator=torch.Generator().manual_seed(0))
    parts = make_parts(rows, queries, categories, approximate, fp32, place)
    if network is not None:
        parts.insert(0, backbone_part(network.module, backbone, place))
    inputs = lambda part: images if part.kind == "backbone" else queries  # noqa: E731
    latencies: list[Latency] = []
    for batch in batches:
        click.echo(f"measuring at batch {batch}", err=True)
        latencies += measure(parts, batch, inputs, seconds, place)
    title = f"{what}; {torch.get_num_threads()} threads, {machine(place)}"
    results = to_results(latencies)
    if chart is not None:
        from predictor.figures.bars import draw_inference
        from predictor.figures.style import save

        save(draw_inference(results, title), chart)
    if out is not None:
        write_atomic(out, (json.dumps(results, indent=1) + "\n").encode())
    emit(results, f"{title}\n\n{to_markdown(latencies)}")


def choose_rows(store: Place | None, split: str, synthetic: str | None) -> tuple[Any, Tensor, str]:
    """A split or a tensor to search, held-out queries, and a line that says what they are."""
    import actstore

    if store is not None and synthetic is not None:
        raise click.UsageError("--store and --synthetic exclude each other")
    if synthetic is None:
        try:
            path = find_store(store)
        except click.UsageError:
            return generate(*PAPER_SIZE, fit=True)
        opened = actstore.open(path)
        return stored(opened[split], opened)
    match = re.fullmatch(r"(\d+)x(\d+)", synthetic)
    if match is None:
        raise click.UsageError(f"--synthetic must be ROWSxDIM, such as 1200000x2048, got {synthetic!r}")
    return generate(int(match[1]), int(match[2]), fit=False)


def stored(rows: Any, store: Any) -> tuple[Any, Tensor, str]:
    """Queries from val or test where the store has one; else from the rows themselves."""
    import torch

    from actstore.compute.tensors import borrow
    from actstore.streams.sampling import generator

    held = next((name for name in ("val", "test") if name in store.splits and name != rows.name), rows.name)
    chosen = generator(0, 0).choice(len(store[held]), min(QUERIES, len(store[held])), replace=False)
    queries = borrow(store[held].take(chosen)).float()
    if len(queries) < QUERIES:
        queries = torch.cat([queries] * -(-QUERIES // len(queries)))[:QUERIES]
    return rows, queries, f"{len(rows):,} x {rows.dim} rows of {rows.path}, queries from {held}"


def generate(count: int, dim: int, fit: bool) -> tuple[Tensor, Tensor, str]:
    """fp16 rows in memory, and queries drawn with them but not among them."""
    import torch

    from actstore.tables.synthetic import SyntheticSpec

    wanted, free = count, available_memory()
    if fit:  # rows, a turned copy of some coordinates, and room to work
        count = min(count, int(0.6 * free / (dim * 3)))
    note = "" if count == wanted else f" ({wanted:,} would not fit into {human_bytes(free)})"
    click.echo(f"generating {count:,} x {dim} rows in memory{note}", err=True)
    rows = torch.empty(count + QUERIES, dim, dtype=torch.float16)
    source = SyntheticSpec(count + QUERIES, dim, shuffled=True).table().activations
    done = 0
    with progress("generate", count + QUERIES) as bar:
        for block in source.blocks(0, count + QUERIES):
            rows[done : done + len(block)] = torch.from_numpy(block)
            done += len(block)
            bar.update(len(block))
    return rows[:count], rows[count:].float(), f"{count:,} x {dim} generated rows{note}"


def make_parts(
    rows: Any, queries: Tensor, categories: int, approximate: str, fp32: bool | None, device: Any
) -> list[Part]:
    from baselines.inference import latency

    count, dim = rows.shape
    parts = [latency.head_part(categories, dim, device)]
    if device.type == "cuda":
        return [*parts, latency.gpu_part(rows, device)]
    parts.append(latency.exact_part(rows))
    with progress("bounded index", count) as bar:
        parts.append(latency.bounded_part(rows, bar.update))
    if approximate != "none":
        with progress(f"{approximate} index", count) as bar:
            parts.append(latency.approximate_part(rows, queries, approximate, bar.update))
    needed, free = 4 * count * dim, available_memory()
    if fp32 is None and needed > 0.8 * free:
        click.echo(
            f"no fp32 copy for faiss and torch: it takes {human_bytes(needed)}, {human_bytes(free)} are free", err=True
        )
    elif fp32 is not False:
        click.echo(f"copying the rows to fp32, {human_bytes(needed)}", err=True)
        parts += latency.flat_parts(rows)
    return parts


def available_memory() -> int:
    """Bytes that can be had without swapping."""
    info = Path("/proc/meminfo")
    if info.exists():
        line = next(line for line in info.read_text().splitlines() if line.startswith("MemAvailable"))
        return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def machine(device: Any) -> str:
    import platform

    from actstore.compute.device import name_device

    return name_device(device) or f"{platform.machine()} CPU, no GPU used"

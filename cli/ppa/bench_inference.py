"""`ppa bench-inference`."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from actstore.spec import INDEX_KINDS
from cli.filekinds import BENCH_TABLES, FIGURE
from cli.group import emit, example, json_option
from cli.options import Place, chart_option, device_option, find_store, store_option, threads_option
from cli.outputs import claim, write_table
from cli.ppa.options import table_option
from cli.progress import progress

if TYPE_CHECKING:
    from baselines.inference.rows import BenchRows, Say


@click.command(
    epilog=example(
        "ppa bench-inference",
        "ppa bench-inference --store imagenet.zarr --chart inference.png",
        "ppa bench-inference --synthetic 1200000x2048 --out table.md",
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
@click.option("--fp32/--no-fp32", default=True,
              help="What the paper did, and faiss's flat search, over 4 bytes a value.  [default: where memory allows]"
              )  # fmt: skip
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=6, show_default=True,
              help="For each figure, and at least three runs.")  # fmt: skip
@threads_option
@device_option("cpu", "cpu or cuda.")
@chart_option
@table_option
@json_option
def bench_inference(
    store: Place | None, split: str, synthetic: str | None, batches: tuple[int, ...], categories: int, backbone: str,
    approximate: str, fp32: bool, seconds: float, threads: int | None, device: str, chart: Path | None,
    out: Path | None,
) -> None:  # fmt: skip
    """Milliseconds from image to category: by predicted parameters, and by nearest neighbours of every kind.

    The paper's 6.83 ms against 37.867 ms and 45 GB, on this machine. Parts take turns; median and 95th percentile
    per image; the rows and what every search needs are in memory before the clock starts. What does not fit into
    memory is left out with a line.
    """
    import torch

    from actstore.compute.device import parse_device
    from baselines.inference.comparison import Wanted, compare
    from baselines.inference.latency_table import to_csv, to_markdown, to_results

    if out is not None and out.suffix not in BENCH_TABLES:
        raise click.UsageError(f"--out must end in .md, .csv or .json, got {out}")
    claim((chart, FIGURE), (out, BENCH_TABLES[out.suffix if out else ".json"]), inputs=[store])
    place = parse_device(device)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    say = partial(click.echo, err=True)
    rows = choose_rows(store, split, synthetic, say)
    compared = compare(rows, Wanted(batches, categories, backbone, approximate, fp32, seconds, place), say, progress)
    title = f"{rows.what}; {torch.get_num_threads()} threads, {machine(place)}"
    results = to_results(compared.latencies)
    if chart is not None:
        from predictor.figures.bars import draw_inference
        from predictor.figures.style import save

        save(draw_inference(results, title), chart)
    text = f"{title}\n\n{to_markdown(compared)}"
    write_table(out, results, text, to_csv(compared))
    emit(results, text)


def choose_rows(store: Place | None, split: str, synthetic: str | None, say: Say) -> BenchRows:
    """Those of a store, or generated ones where they are asked for or no store is here."""
    import actstore
    from baselines.inference.memory import available_memory
    from baselines.inference.rows import fitting_size, generated_rows, stored_rows

    if store is not None and synthetic is not None:
        raise click.UsageError("--store and --synthetic exclude each other")
    if synthetic is None:
        try:
            path = find_store(store)
        except click.UsageError:
            return generated_rows(*fitting_size(available_memory()), say, progress)
        return stored_rows(actstore.open(path), split)
    match = re.fullmatch(r"(\d+)x(\d+)", synthetic)
    if match is None:
        raise click.UsageError(f"--synthetic must be ROWSxDIM, such as 1200000x2048, got {synthetic!r}")
    return generated_rows(int(match[1]), int(match[2]), say, progress)


def machine(device: Any) -> str:
    import platform

    from actstore.compute.device import name_device

    return name_device(device) or f"{platform.machine()} CPU, no GPU used"

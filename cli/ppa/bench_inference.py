"""`ppa bench-inference`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from actstore.search import INDEX_KINDS
from cli.group import emit, example, json_option
from cli.options import chart_option, device_option, threads_option
from cli.outputs import claim, claim_table
from cli.ppa.options import table_option
from cli.stores import Place, find_store, store_option


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
    store: Place | None, synthetic: str | None, chart: Path | None, out: Path | None, **measured: Any
) -> None:
    """Milliseconds from image to category: by predicted parameters, and by nearest neighbours of every kind.

    The paper's 6.83 ms against 37.867 ms and 45 GB, on this machine. Parts take turns; median and 95th percentile
    per image; the rows and what every search needs are in memory before the clock starts. What does not fit into
    memory is left out with a line.
    """
    claim_table(out, [store])
    claim(chart)
    import baselines

    if store is not None and synthetic is not None:
        raise click.UsageError("--store and --synthetic exclude each other")
    if synthetic is not None and not re.fullmatch(r"\d+x\d+", synthetic):
        raise click.UsageError(f"--synthetic must be ROWSxDIM, such as 1200000x2048, got {synthetic!r}")
    found = None if synthetic is not None else find_store_or_none(store)
    results = baselines.time_inference(found, synthetic, progress=True, **measured)
    if chart is not None:
        results.save_plot(chart)
    if out is not None:
        results.save(out)
    emit(results.records, results.to_markdown())


def find_store_or_none(store: Place | None) -> Any:
    """The store that is meant; None where there is none here."""
    import actstore

    try:
        return actstore.open(find_store(store))
    except click.UsageError:
        return None

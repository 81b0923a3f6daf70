"""`actstore bench`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cli.group import emit, example, json_option, table
from cli.options import chart_option


@click.command(epilog=example("actstore bench", "actstore bench --dir /mnt/fast --rows 200000 --chart bench.png"))
@click.option("--dir", "folder", type=click.Path(path_type=Path, file_okay=False, exists=True), default=Path(),
              help="The disk to measure.  [default: the current folder]")  # fmt: skip
@click.option("--rows", type=click.IntRange(1000), default=50_000, show_default=True)
@click.option("--dim", type=click.IntRange(1), default=2048, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=900, show_default=True, help="Random rows per take.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option("--peers/--no-peers", default=True, help="Also measure zarr-python, tensorstore, Lance and h5py.")
@chart_option
@json_option
def bench(folder: Path, rows: int, dim: int, batch: int, rounds: int, peers: bool, chart: Path | None) -> None:
    """Compare layouts, codecs and other stores on this disk: random rows, full scans, durable writes.

    Everything is written to a temporary folder and removed. Ratios are against a numpy memmap of the same bytes.
    """
    from actstore.bench.layouts import bench_layouts
    from cli.filekinds import FIGURE
    from cli.outputs import claim

    claim((chart, FIGURE))
    results = bench_layouts(folder, rows, dim, batch, rounds, peers, lambda text: click.echo(text, err=True))
    title = f"{rows:,} x {dim} fp16, {os.cpu_count()} cores, page cache warm"
    if chart is not None:
        from predictor.figures.bars import draw_contenders
        from predictor.figures.style import save

        save(draw_contenders(results, title), chart)
    lines = [[r.name, f"{r.value:,.3g}", r.unit, f"{r.ratio:.3g}x"] for r in results]
    header = ["measurement", "value", "unit", "against numpy memmap"]
    emit([result.to_json() for result in results], f"{title}\n\n{table(header, lines)}")

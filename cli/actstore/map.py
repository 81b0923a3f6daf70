"""`actstore map`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from actstore.progress import bar
from cli.group import emit, example, human_bytes, json_option
from cli.options import FILE, ending, seed_option, split_option
from cli.outputs import claim
from cli.row_options import filter_options, where_option
from cli.stores import Place, chosen_rows, open_split, sources_of, store_argument


@click.command(
    name="map",
    epilog=example(
        "actstore map photos.zarr",
        "actstore map imagenet.zarr --split val --color area --out areas.html",
        "actstore map imagenet.zarr --where 'area > 0.5' --points 500000 --parquet map.parquet",
        "actstore map imported.zarr --images photos/",
    ),
)
@store_argument
@split_option
@filter_options
@where_option
@click.option("--points", type=click.IntRange(1, 500_000), default=100_000, show_default=True,
              help="Of more rows, so many are drawn at random.")  # fmt: skip
@click.option("--method", type=click.Choice(["auto", "umap", "pca"]), default="auto", show_default=True,
              help="auto: umap where umap-learn is installed, else pca.")  # fmt: skip
@click.option("-k", type=click.IntRange(1), default=15, show_default=True, help="Neighbours of every row.")
@click.option("--color", metavar="COLUMN", help="What points are coloured by at first.  [default: class]")
@click.option("--thumbnails", type=click.IntRange(0), default=10_000, show_default=True,
              help="Images in the page, about 1.5 kB each; 0: none.")  # fmt: skip
@click.option("--images", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Where the ids of imported rows are paths of images.")  # fmt: skip
@seed_option
@click.option("--out", "-o", type=FILE, default=Path("map.html"), show_default=True, callback=ending(".html"),
              help="The page, .html.")  # fmt: skip
@click.option("--parquet", "output", type=FILE, callback=ending(".parquet"),
              help="Also write x, y, id, class, columns and neighbours, as Embedding Atlas reads them.")  # fmt: skip
@json_option
def map_(
    store: Place, split: str | None, points: int, method: str, k: int, color: str | None, thumbnails: int,
    images: Path | None, seed: int, out: Path, output: Path | None, **filters: Any,
) -> None:  # fmt: skip
    """Draw the rows of STORE as points on one HTML page, each near those it is like.

    Laid out by UMAP on the exact graph of neighbours (pip install 'actstore[map]'), else by principal components. The
    page needs no network: colours by class or column, names, thumbnails, search, and a lasso for a list of ids.
    --class, --glob, --rows and --where limit the rows.
    """
    import actstore
    from actstore.maps import require_scale

    opened = open_split(store, split)
    require_scale(opened, color)
    claim(out, output, inputs=sources_of(opened))
    chosen = chosen_rows(opened, **filters)
    begin, drawn = time.perf_counter(), min(points, len(opened) if chosen is None else len(chosen))
    with bar("neighbours and layout", drawn, "rows", True) as done:
        made = actstore.map(opened, points, rows=chosen, method=method, k=k, seed=seed, progress=done.update)
    with bar("thumbnails", min(thumbnails, drawn), "images", True) as done:
        notes = made.save(out, color=color, thumbnails=thumbnails, images=images, progress=done.update)
    if output is not None:
        made.to_parquet(output)
    seconds, size = time.perf_counter() - begin, out.stat().st_size
    result = {"store": str(opened.store_path), "split": opened.name, "output": str(out), "bytes": size,
              "points": len(made), "rows": len(opened), "method": made.method, "seed": seed, "seconds": seconds,
              "notes": notes, "parquet": None if output is None else str(output)}  # fmt: skip
    lines = [f"{out}: {len(made):,} rows by {made.method.upper()}, {human_bytes(size)}, {seconds:.1f} s"]
    emit(result, "\n".join([*lines, *(f"note: {note}" for note in notes)]))

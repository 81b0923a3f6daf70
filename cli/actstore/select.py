"""`actstore select`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from cli.group import emit, example, json_option
from cli.options import STORE, filter_options, where_option
from cli.progress import SplitBars

if TYPE_CHECKING:
    from actstore.storage.place import Place


@click.command(
    epilog=example(
        "actstore select imagenet.zarr large.zarr --where 'width >= 224 and height >= 224'",
        "actstore select imagenet.zarr clean.zarr --split train --rows bad.npy --drop",
        "actstore select imagenet.zarr fish.zarr --class n01440764 --class n01443537",
        "actstore select imagenet.zarr sample.zarr --split train --rows ::10",
    )
)
@click.argument("store", type=STORE)
@click.argument("out", type=STORE)
@click.option("--split", "splits", multiple=True, help="Which splits; repeatable.  [default: all]")
@filter_options
@where_option
@click.option("--drop", is_flag=True, help="Write all rows but those.")
@click.option("--chunk-rows", type=click.IntRange(1), help="Rows per chunk file.  [default: about 32 MiB]")
@click.option("--restart", is_flag=True, help="Discard an interrupted run instead of resuming it.")
@json_option
def select(
    store: Place, out: Place, splits: tuple[str, ...], classes: tuple[str, ...], path_glob: str | None,
    rows: str | None, where: tuple[str, ...], drop: bool, chunk_rows: int | None, restart: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write the chosen rows of STORE, or all but them, to a new store OUT.

    Labels, ids, columns, class names and what is known of their origin come along; STORE stays as it is. Every filter
    given must hold. Interrupted, the same command resumes.
    """
    from actstore.store import open as open_store
    from actstore.upkeep.select import Choice
    from actstore.upkeep.select import select as run

    if not (classes or where) and path_glob is None and rows is None:
        raise click.UsageError("say which rows: give --class, --where, --rows or --glob")
    found = list(open_store(store).splits)
    if rows is not None and len(splits or found) > 1:
        raise click.UsageError(f"--rows counts the rows of one split; choose it with --split: {', '.join(found)}")
    begin, bars = time.perf_counter(), SplitBars("select")
    try:
        made = run(store, out, Choice(classes, path_glob, rows, where, drop), splits, chunk_rows, bars, restart)
    finally:
        bars.close()
    seconds, counts = time.perf_counter() - begin, {name: split.rows for name, split in made.splits.items()}
    for name in [name for name in splits or found if name not in counts]:
        click.echo(f"WARNING: no row of {name} is chosen; it is left out", err=True)
    result = {"store": str(made.path), "rows": counts, "classes": len(made.classes), "seconds": seconds}
    listed = ", ".join(f"{name} {count:,} rows" for name, count in counts.items())
    emit(result, as_json, lambda: f"{made.path}: {listed}, in {seconds:.1f} s")

"""`actstore select` and `actstore rechunk`: rows of a store as another one."""

from __future__ import annotations

import time

import click

from actstore.progress import SplitBars
from cli.group import describe_rows, emit, example, human_bytes, json_option
from cli.options import chunk_rows_option, restart_option
from cli.row_options import filter_options, where_option
from cli.stores import STORE, Place


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
@chunk_rows_option
@restart_option
@json_option
def select(
    store: Place, out: Place, splits: tuple[str, ...], classes: tuple[str, ...], path_glob: str | None,
    rows: str | None, where: tuple[str, ...], drop: bool, chunk_rows: int | None, restart: bool,
) -> None:  # fmt: skip
    """Write the chosen rows of STORE, or all but them, to a new store OUT.

    Labels, ids, columns, class names and what is known of their origin come along; STORE stays as it is. Every filter
    given must hold. Interrupted, the same command resumes.
    """
    import actstore

    if not (classes or where) and path_glob is None and rows is None:
        raise click.UsageError("say which rows: give --class, --where, --rows or --glob")
    names = list(actstore.open(store).splits)
    if rows is not None and len(splits or names) > 1:
        raise click.UsageError(f"--rows counts the rows of one split; choose it with --split: {', '.join(names)}")
    begin = time.perf_counter()
    with SplitBars("select", shown=True) as bars:
        made = actstore.select(store, out, classes=classes, path_glob=path_glob, rows=rows, where=where, drop=drop,
                               splits=splits, chunk_rows=chunk_rows, progress=bars, restart=restart)  # fmt: skip
    seconds, counts = time.perf_counter() - begin, {name: split.rows for name, split in made.splits.items()}
    for name in [name for name in splits or names if name not in counts]:
        click.echo(f"WARNING: no row of {name} is chosen; it is left out", err=True)
    result = {"store": str(made.path), "rows": counts, "classes": len(made.classes), "seconds": seconds}
    emit(result, f"{made.path}: {describe_rows(counts)}, in {seconds:.1f} s")


@click.command(
    epilog=example(
        "actstore rechunk features.zarr                              # in place, chunks of about 32 MiB",
        "actstore rechunk features.zarr larger.zarr --chunk-rows 8192",
    )
)
@click.argument("store", type=STORE)
@click.argument("out", required=False, type=STORE)
@chunk_rows_option
@restart_option
@json_option
def rechunk(store: Place, out: Place | None, chunk_rows: int | None, restart: bool) -> None:
    """Copy STORE to OUT in chunks of another size, or replace STORE itself once the copy is complete.

    Rows, labels, ids, classes and what is known of their origin stay as they are; statistics and indexes are made again
    when asked for. A store that began small and has grown reads faster from larger chunks. Interrupted, the same
    command resumes.
    """
    import actstore

    begin = time.perf_counter()
    with SplitBars("rechunk", shown=True) as bars:
        made = actstore.rechunk(store, out, chunk_rows, bars, restart)
    seconds, rows = time.perf_counter() - begin, {name: split.rows for name, split in made.splits.items()}
    chunks = f"{made.spec.chunk_rows:,} rows ({human_bytes(made.spec.chunk_bytes)})"
    emit({"store": str(made.path), "rows": rows, "chunk_rows": made.spec.chunk_rows, "seconds": seconds},
         f"{made.path}: {describe_rows(rows)}, in chunks of {chunks}, {seconds:.1f} s")  # fmt: skip

"""`actstore rechunk`."""

from __future__ import annotations

import time

import click

from cli.group import describe_rows, emit, example, human_bytes, json_option
from cli.options import chunk_rows_option, restart_option
from cli.progress import SplitBars
from cli.stores import STORE, Place


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
    with SplitBars("rechunk") as bars:
        made = actstore.rechunk(store, out, chunk_rows, bars, restart)
    seconds, rows = time.perf_counter() - begin, {name: split.rows for name, split in made.splits.items()}
    chunks = f"{made.spec.chunk_rows:,} rows ({human_bytes(made.spec.chunk_bytes)})"
    emit({"store": str(made.path), "rows": rows, "chunk_rows": made.spec.chunk_rows, "seconds": seconds},
         f"{made.path}: {describe_rows(rows)}, in chunks of {chunks}, {seconds:.1f} s")  # fmt: skip

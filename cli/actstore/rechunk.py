"""`actstore rechunk`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from cli.group import emit, example, human_bytes, json_option
from cli.options import STORE
from cli.progress import SplitBars

if TYPE_CHECKING:
    from actstore.storage.place import Place


@click.command(
    epilog=example(
        "actstore rechunk features.zarr                              # in place, chunks of about 32 MiB",
        "actstore rechunk features.zarr larger.zarr --chunk-rows 8192",
    )
)
@click.argument("store", type=STORE)
@click.argument("out", required=False, type=STORE)
@click.option("--chunk-rows", type=click.IntRange(1), help="Rows per chunk file.  [default: about 32 MiB]")
@click.option("--restart", is_flag=True, help="Discard an interrupted run instead of resuming it.")
@json_option
def rechunk(store: Place, out: Place | None, chunk_rows: int | None, restart: bool, as_json: bool) -> None:
    """Copy STORE to OUT in chunks of another size, or replace STORE itself once the copy is complete.

    Rows, labels, ids, classes and what is known of their origin stay as they are; statistics and indexes are made again
    when asked for. A store that began small and has grown reads faster from larger chunks. Interrupted, the same
    command resumes.
    """
    from actstore.upkeep.rechunk import rechunk as run

    begin, bars = time.perf_counter(), SplitBars("rechunk")
    try:
        made = run(store, out, chunk_rows, bars, restart)
    finally:
        bars.close()
    seconds, rows = time.perf_counter() - begin, {name: split.rows for name, split in made.splits.items()}
    emit(
        {"store": str(made.path), "rows": rows, "chunk_rows": made.spec.chunk_rows, "seconds": seconds},
        as_json,
        lambda: (
            f"{made.path}: {', '.join(f'{name} {count:,} rows' for name, count in rows.items())}, in chunks of "
            f"{made.spec.chunk_rows:,} rows ({human_bytes(made.spec.chunk_bytes)}), {seconds:.1f} s"
        ),
    )

"""`actstore means` and `actstore verify`: what is computed from every row of a store, and whether each is whole."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from actstore.progress import bar
from cli.group import emit, example, json_option
from cli.options import PATH, split_option
from cli.outputs import claim
from cli.row_options import chosen_cluster, cluster_options
from cli.stores import Place, open_split, sources_of, store_argument


@click.command(
    epilog=example(
        "actstore means imagenet.zarr",
        "actstore means imagenet.zarr --output means.npy",
        "actstore means imagenet.zarr --scheduler tcp://10.0.0.1:8786",
    )
)
@store_argument
@split_option
@click.option("--output", "-o", type=PATH, help="Also write the (classes, dim) means as .npy.")
@cluster_options
@json_option
def means(
    store: Place, split: str | None, output: Path | None, scheduler: str | None, local_cluster: int | None
) -> None:
    """Count, mean and variance of every class, computed with dask and kept in STORE.

    Kept results are used while they belong to the content at hand; after an append only new rows are read.
    """
    from actstore.statistics import has_statistics
    from actstore.storage import npy_bytes, write_atomic

    opened = open_split(store, split)
    claim(output, inputs=sources_of(opened))
    begin = time.perf_counter()
    with chosen_cluster(scheduler, local_cluster) as cluster, bar("means", len(opened), "rows", True) as done:
        statistics = opened.statistics(done.update, cluster)
    seconds, kept = time.perf_counter() - begin, has_statistics(opened)
    if output is not None:
        write_atomic(output, npy_bytes(statistics.mean.astype("f4")))
    filled = [count for count in statistics.count.tolist() if count]
    fewest, most, empty = min(filled, default=0), max(filled, default=0), len(statistics.count) - len(filled)
    result = {
        "store": str(opened.store_path), "split": opened.name, "classes": len(opened.classes),
        "classes_without_rows": empty, "fewest_rows": fewest, "most_rows": most, "seconds": seconds,
        "content": opened.content, "kept": kept,
    }  # fmt: skip
    text = f"{opened.store_path} {opened.name}: {len(filled)} class means of {fewest:,} to {most:,} rows"
    text += f", {seconds:.2f} s" + (f"; {empty} classes have no rows" if empty else "")
    emit(result, text if kept else f"{text}; not kept, as {opened.store_path} cannot be written to")


@click.command(epilog=example("actstore verify imagenet.zarr", "actstore verify imagenet.zarr --repair"))
@store_argument
@click.option("--repair", is_flag=True, help="Restore damaged metadata; read bad chunks again from their source.")
@cluster_options
@json_option
@click.pass_context
def verify(ctx: click.Context, store: Place, repair: bool, scheduler: str | None, local_cluster: int | None) -> None:
    """Check every chunk of STORE: missing, truncated, corrupt or non-finite; also its metadata, and the norms and
    indexes kept beside it.

    The exit code is 0 for a healthy store and 1 where a fault remains.
    """
    import actstore

    with chosen_cluster(scheduler, local_cluster) as cluster:
        found = actstore.verify(store, repair=repair, progress=True, cluster=cluster)
    result = {
        "store": str(store),
        "rows": found.rows,
        "faults": [asdict(fault) for fault in found.faults],
        "restored": [{"file": file, "outcome": outcome} for file, outcome in found.restored],
        "repairs": [{**asdict(fault), "outcome": outcome} for fault, outcome in found.repairs],
        "remaining": len(found.remaining),
        "incomplete": found.incomplete,
    }
    lines = [f"{what}: {said}" for what, said in (*found.restored, *found.repairs)]
    lines += [str(fault) for fault in found.remaining if fault not in dict(found.repairs)]
    lines += [f"incomplete: {name} (repeat the command that builds it)" for name in found.incomplete]
    healthy = f"{store}: {found.rows:,} rows, every chunk is whole"
    faulty = f"{store}: {len(found.remaining)} faults remain" + ("" if repair else "; try --repair")
    emit(result, "\n".join([*lines, faulty if found.remaining else healthy]))
    if found.remaining:
        ctx.exit(1)

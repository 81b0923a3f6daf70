"""`actstore means`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from cli.group import emit, example, json_option
from cli.options import PATH, split_option
from cli.outputs import claim
from cli.stores import Place, open_split, sources_of, store_argument
from cli.work import chosen_cluster, cluster_options, progress


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
    with chosen_cluster(scheduler, local_cluster) as cluster, progress("means", len(opened)) as bar:
        statistics = opened.statistics(bar.update, cluster)
    seconds, kept = time.perf_counter() - begin, has_statistics(opened)
    if output is not None:
        write_atomic(output, npy_bytes(statistics.mean.astype("f4")))
    filled = [count for count in statistics.count.tolist() if count]
    fewest, most, empty = min(filled, default=0), max(filled, default=0), len(statistics.count) - len(filled)
    result = {
        "store": str(store), "split": opened.name, "classes": len(opened.classes), "classes_without_rows": empty,
        "fewest_rows": fewest, "most_rows": most, "seconds": seconds, "content": opened.content,
        "kept": kept,
    }  # fmt: skip
    text = f"{store} {opened.name}: {len(filled)} class means of {fewest:,} to {most:,} rows, {seconds:.2f} s"
    text += f"; {empty} classes have no rows" if empty else ""
    emit(result, text if kept else f"{text}; not kept, as {store} cannot be written to")

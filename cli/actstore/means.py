"""`actstore means`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.cluster import chosen_cluster, cluster_options
from cli.group import emit, example, json_option
from cli.options import open_split, split_option, store_argument
from cli.progress import progress

if TYPE_CHECKING:
    from actstore.storage.place import Place


@click.command(
    epilog=example(
        "actstore means imagenet.zarr",
        "actstore means imagenet.zarr --output means.npy",
        "actstore means imagenet.zarr --scheduler tcp://10.0.0.1:8786",
    )
)
@store_argument
@split_option
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Also write the (classes, dim) means as .npy.")
@cluster_options
@json_option
def means(
    store: Place, split: str | None, output: Path | None, scheduler: str | None, local_cluster: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Count, mean and variance of every class, computed with dask and kept in STORE.

    Kept results are used while they belong to the content at hand; after an append only new rows are read.
    """
    from actstore.statistics.class_statistics import class_statistics
    from actstore.storage.atomic_file import npy_bytes, write_atomic
    from cli.filekinds import means_array
    from cli.outputs import claim, sources_of

    opened = open_split(store, split)
    claim((output, means_array(len(opened.classes), opened.dim)), inputs=sources_of(opened))
    begin = time.perf_counter()
    with chosen_cluster(scheduler, local_cluster) as cluster, progress("means", len(opened)) as bar:
        statistics = class_statistics(opened, bar.update, cluster)
    seconds = time.perf_counter() - begin
    if output is not None:
        write_atomic(output, npy_bytes(statistics.mean.astype("f4")))
    filled = statistics.count[statistics.count > 0]
    result = {
        "store": str(store),
        "split": opened.name,
        "classes": len(opened.classes),
        "classes_without_rows": int((statistics.count == 0).sum()),
        "fewest_rows": int(filled.min()) if len(filled) else 0,
        "most_rows": int(filled.max()) if len(filled) else 0,
        "seconds": seconds,
        "content": opened.content,
    }
    emit(
        result,
        as_json,
        lambda: (
            f"{store} {opened.name}: {len(filled)} class means of {result['fewest_rows']:,} to "
            f"{result['most_rows']:,} rows, {seconds:.2f} s"
            + (f"; {result['classes_without_rows']} classes have no rows" if result["classes_without_rows"] else "")
        ),
    )

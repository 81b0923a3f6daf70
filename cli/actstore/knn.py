"""`actstore knn`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from cli.group import emit, example, json_option
from cli.options import FILE, split_option
from cli.outputs import claim
from cli.stores import STORE, Place, cache_options, sources_of
from cli.work import progress

ENDINGS = (".npz", ".parquet")


@click.command(
    epilog=example(
        "actstore knn imagenet.zarr graph.npz",
        "actstore knn imagenet.zarr edges.parquet --split val -k 30",
        "actstore knn imagenet.zarr truth.parquet --queries others.zarr/val -k 100",
        "actstore knn imagenet.zarr truth.npz --queries vectors.npy",
    )
)
@click.argument("store", type=STORE)
@click.argument("out", type=FILE)
@cache_options
@split_option
@click.option("-k", type=click.IntRange(1), default=15, show_default=True, help="Neighbours of every row.")
@click.option("--queries", metavar="STORE[/SPLIT]|FILE.npy",
              help="Neighbours of these among the rows of STORE, instead of its own.")  # fmt: skip
@json_option
def knn(store: Place, out: Path, split: str | None, k: int, queries: str | None) -> None:
    """The exact k-nearest-neighbour graph of STORE by cosine, written to OUT: .npz for scipy, cleanlab, UMAP and
    scanpy, or .parquet.

    Interrupted, the same command goes on after the last finished block, which OUT.parts keeps, and ends with the same
    file. With --queries it is the ground truth for the recall of any other index.
    """
    import actstore
    from cli.stores import open_split

    if out.suffix not in ENDINGS:
        raise click.UsageError(f"OUT must end in {' or '.join(ENDINGS)}, got {out}")
    opened = open_split(store, split)
    asked = None if queries is None else _open_queries(queries)
    claim(out, inputs=[*sources_of(opened), queries and Path(queries)])
    begin = time.perf_counter()
    with progress("knn", len(opened) if asked is None else len(asked)) as bar:
        graph = actstore.knn(opened, k, asked, out, bar.update)
    seconds, edges = time.perf_counter() - begin, int((graph.rows >= 0).sum())
    alone = int((graph.rows < 0).all(1).sum())
    result = {"store": str(store), "split": opened.name, "output": str(out), "k": k, "queries": len(graph.rows),
              "edges": edges, "without_neighbours": alone, "seconds": seconds}  # fmt: skip
    note = f"; {alone:,} rows of zeros have none" if alone else ""
    emit(result, f"{out}: {k} nearest of {len(graph.rows):,} rows, {edges:,} edges, {seconds:.1f} s{note}")


def _open_queries(text: str) -> Any:
    if text.endswith(".npy"):
        from actstore.storage import load_npy

        return load_npy(Path(text), "a .npy file of vectors")
    from actstore.analysis import open_representation

    return open_representation(STORE.convert(text, None, click.get_current_context()))

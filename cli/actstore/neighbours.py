"""`actstore index` and `actstore knn`: what makes searches faster, and the nearest rows of every row."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from actstore.progress import bar
from actstore.search import INDEX_KINDS
from cli.group import emit, example, json_option
from cli.options import FILE, ending, seed_option, split_option
from cli.outputs import claim
from cli.stores import STORE, Place, cache_options, open_split, sources_of, store_argument


@click.command(
    epilog=example(
        "actstore index imagenet.zarr --kind bounded",
        "actstore index imagenet.zarr --kind ivf --recall-queries val",
        "actstore index imagenet.zarr --kind pq --dims 128 --lists 1024 --refine 200",
    )
)
@store_argument
@split_option
@click.option("--kind", type=click.Choice(["bounded", *INDEX_KINDS]), default="bounded", show_default=True,
              help="bounded stays exact; the others are faiss's approximate indexes.")  # fmt: skip
@click.option("--dims", type=click.IntRange(2), help="Leading principal coordinates that an approximate index keeps.  "
              "[default: an eighth, at least 64]")  # fmt: skip
@click.option("--lists", type=click.IntRange(1), help="Cells of the inverted file.  [default: square root of the rows]")
@click.option("--refine", type=click.IntRange(1), help="Rows per query that are scored again from the store.  "
              "[default: 128 for pq, else 8]")  # fmt: skip
@click.option("--recall", type=click.FloatRange(0, 1), default=0.95, show_default=True, help="Effort is raised to it.")
@click.option("--recall-queries", help="Split whose rows measure the recall.  [default: rows held out of the index]")
@click.option("--again", is_flag=True, help="Build anew where an index of earlier rows could be extended.")
@seed_option
@json_option
@click.pass_context
def index(
    ctx: click.Context, /, store: Place, split: str | None, kind: str, recall_queries: str | None, again: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Build what makes searches of STORE faster, and keep it beside it, in STORE.search.

    After an append, searches look through the new rows beside the index, and the same command extends it (with an
    approximate index's own --dims, --lists and --refine). The exit code is 1 where an approximate index misses
    --recall; it is kept all the same.
    """
    from actstore.search import index_split

    begin = time.perf_counter()
    opened = open_split(store, split)
    queries = None if recall_queries is None else open_split(opened.store_path, recall_queries)
    if recall_queries == opened.name:
        raise click.UsageError(f"--recall-queries must be another split than {opened.name}, which is indexed")
    with bar(f"index {kind}", len(opened), "rows", True) as done:
        built = index_split(opened, kind, queries=queries, again=again, progress=done.update, **settings)
    seconds = time.perf_counter() - begin
    emit({"store": str(opened.store_path), "split": opened.name, "kind": kind, **built.facts, "seconds": seconds},
         f"{opened.store_path} {opened.name}: {kind} index, {built.text}; {seconds:.1f} s")  # fmt: skip
    if not built.reached:
        text = f"WARNING: the {kind} index finds the nearest row of {built.facts['recall']:.1%} of the queries only, "
        text += f"{settings['recall']:.1%} were asked for; it is kept and can be used. More --dims or --refine, "
        click.echo(f"{text}another --kind, or --kind bounded finds more", err=True)
        ctx.exit(1)


@click.command(
    epilog=example(
        "actstore knn imagenet.zarr graph.npz",
        "actstore knn imagenet.zarr edges.parquet --split val -k 30",
        "actstore knn imagenet.zarr truth.parquet --queries others.zarr/val -k 100",
        "actstore knn imagenet.zarr truth.npz --queries vectors.npy",
    )
)
@click.argument("store", type=STORE)
@click.argument("out", type=FILE, callback=ending(".npz", ".parquet"))
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

    opened = open_split(store, split)
    asked = None if queries is None else _open_queries(queries)
    claim(out, inputs=[*sources_of(opened), queries and Path(queries)])
    begin = time.perf_counter()
    with bar("knn", len(opened) if asked is None else len(asked), "rows", True) as done:
        graph = actstore.knn(opened, k, asked, out, done.update)
    seconds, edges = time.perf_counter() - begin, int((graph.rows >= 0).sum())
    alone = int((graph.rows < 0).all(1).sum())
    result = {"store": str(opened.store_path), "split": opened.name, "output": str(out), "k": k,
              "queries": len(graph.rows), "edges": edges, "without_neighbours": alone, "seconds": seconds}  # fmt: skip
    text = f"{out}: {k} nearest of {len(graph.rows):,} rows, {edges:,} edges, {seconds:.1f} s"
    emit(result, f"{text}; rows of zeros, which have no neighbours: {alone:,}" if alone else text)


def _open_queries(text: str) -> Any:
    if text.endswith(".npy"):
        from actstore.storage import load_npy

        return load_npy(Path(text), "a .npy file of vectors")
    from actstore.analysis import open_representation

    return open_representation(STORE.convert(text, None, click.get_current_context()))

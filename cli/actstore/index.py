"""`actstore index`."""

from __future__ import annotations

import time
from typing import Any

import click

from actstore.search import INDEX_KINDS
from cli.group import emit, example, json_option
from cli.options import seed_option, split_option
from cli.stores import Place, open_split, store_argument
from cli.work import progress


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
@click.option("--recall", type=click.FloatRange(0, 1), default=0.95, show_default=True,
              help="Effort is raised to this.")  # fmt: skip
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
    queries = None if recall_queries is None else open_split(store, recall_queries)
    if recall_queries == opened.name:
        raise click.UsageError(f"--recall-queries must be another split than {opened.name}, which is indexed")
    with progress(f"index {kind}", len(opened)) as bar:
        built = index_split(opened, kind, queries=queries, again=again, progress=bar.update, **settings)
    seconds = time.perf_counter() - begin
    result = {"store": str(store), "split": opened.name, "kind": kind, **built.facts, "seconds": seconds}
    emit(result, f"{store} {opened.name}: {kind} index, {built.text}; {seconds:.1f} s")
    if not built.reached:
        click.echo(
            f"WARNING: the {kind} index finds the nearest row of {built.facts['recall']:.1%} of the queries only, "
            f"{settings['recall']:.1%} were asked for; it is kept and can be used. More --dims or --refine, another "
            "--kind, or --kind bounded finds more",
            err=True,
        )
        ctx.exit(1)

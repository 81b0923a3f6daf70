"""Options that say which rows, of a store or of an array file, how they are laid out, and who shares the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import FILE, Command, chunk_rows_option, combine, restart_option

if TYPE_CHECKING:
    from actstore.compute import Cluster

# which rows; all that are given must hold
filter_options = combine(
    click.option("--class", "classes", multiple=True, help="A class name; may be given several times."),
    click.option("--glob", "path_glob", help="A shell pattern that the image's id must match, such as '*/tench/*'."),
    click.option("--rows", help="A range such as 0:1000, or a file of row numbers (.npy or text)."),
)
where_option = click.option(
    "--where", multiple=True, metavar="CONDITION",
    help="A condition on columns such as 'area > 0.5 and source in (web, print)'; repeatable.",
)  # fmt: skip


# what belongs to an array file
file_options = combine(
    click.option("--labels", type=FILE, help="Labels: .npy, or text with one number or class name per line."),
    click.option("--ids", type=FILE, help="Image ids: text, one per line."),
    click.option("--classes", type=FILE, help="Class names, one per line, in the order of the labels."),
    click.option("--column", multiple=True, metavar="NAME",
                 help="A column of ARRAY, or of --columns, to keep beside the rows; repeatable."),
    click.option("--columns", type=FILE, help="Further values of every row: a .csv or .parquet with a row each."),
    click.option("--array", help="Which array of the file, where it holds several."),
    click.option("--split", help="Name of the split to fill.  [default: train, or the names in the file]"),
    restart_option,
)  # fmt: skip


def _read_trained_on(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> list[str] | None:
    """Of a split file the base; of any other text file its lines."""
    if path is None:
        return None
    from actstore.tables import as_text, read_column
    from predictor import read_split

    return list(read_split(path).base) if path.suffix == ".json" else as_text(read_column(path, "classes"))


trained_on_option = click.option(
    "--trained-on", type=FILE, callback=_read_trained_on,
    help="Classes the network was trained on: names, one per line, or a split file (its base). Without it, "
    "tables say that it may have seen the novel categories.",
)  # fmt: skip


def layout_options(default: str | None = "f2") -> Callable[[Command], Command]:
    """How a new store is laid out on disk. default: None where rows keep the type they come in."""
    kept = "" if default else "  [default: as it comes, f2 for fp16, else f4]"
    return combine(
        click.option("--dtype", type=click.Choice(["f2", "f4"]), default=default, show_default=default is not None,
                     help=f"fp16 or fp32 on disk.{kept}"),
        chunk_rows_option,
        click.option("--codec", type=click.Choice(["raw", "blosc"]), default="raw", show_default=True,
                     help="raw can be memory-mapped; blosc is a little smaller and much slower at random."),
        click.option("--shard-inner-rows", type=click.IntRange(0),
                     help="Make chunk files shards of pieces of so many rows; 0: none.  [default: 0, remote: 1]"),
    )  # fmt: skip


DEFAULT_NETWORK = "[default: resnet50 if it is at hand or can be fetched, else efficientnet-lite0]"

fetching_options = combine(
    click.option("--pretrained", is_flag=True, help="Fetch the weights of --backbone, if it is resnet50, resnet18, "
                 "timm:NAME or torchvision:NAME."),
    click.option("--offline", is_flag=True, help="Fetch nothing: a network that is on this machine.  [default: "
                 "$ACTSTORE_OFFLINE]"),
)  # fmt: skip


def require_fetching_options(backbone: str | None, pretrained: bool, offline: bool) -> None:
    if pretrained and backbone is None:
        raise click.UsageError("--pretrained belongs to --backbone")
    if pretrained and offline:
        raise click.UsageError("--pretrained fetches weights and --offline forbids it; choose one")


# of which one may be given
cluster_options = combine(
    click.option("--scheduler", metavar="ADDRESS",
                 help="Share the work among dask workers: tcp://HOST:PORT, or the scheduler's --scheduler-file."),
    click.option("--local-cluster", type=click.IntRange(1), metavar="N",
                 help="Share the work among N processes of this machine."),
)  # fmt: skip


@contextmanager
def chosen_cluster(scheduler: str | None, local_cluster: int | None) -> Iterator[Cluster | None]:
    """The cluster asked for, None where none was; its dashboard is named on stderr."""
    if scheduler is not None and local_cluster is not None:
        raise click.UsageError("--scheduler and --local-cluster exclude each other; give one of them")
    if scheduler is None and local_cluster is None:
        yield None
        return
    from actstore.compute import connect

    with connect(scheduler, local_cluster) as cluster:
        shown = f"; dashboard: {cluster.dashboard}" if cluster.dashboard else ""
        click.echo(f"cluster of {cluster.workers()} workers{shown}", err=True)
        yield cluster

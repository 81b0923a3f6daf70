"""Where work is done (here, or on a cluster that shares it), and how its progress is shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import click

from actstore.progress import Bar, bar
from actstore.progress import SplitBars as LibraryBars
from cli.options import combine

if TYPE_CHECKING:
    from actstore.compute import Cluster

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


def progress(what: str, total: int, unit: str = "rows") -> AbstractContextManager[Bar]:
    """A bar on stderr with rate and time left, live on a terminal, a line now and then in a log; `update` may be called
    from several threads."""
    return bar(what, total, unit, True)


class SplitBars(LibraryBars):
    """One bar after the other for work on several splits."""

    def __init__(self, what: str, unit: str = "rows") -> None:
        super().__init__(what, unit, True)

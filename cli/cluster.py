"""Options of the commands whose work a cluster can share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

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

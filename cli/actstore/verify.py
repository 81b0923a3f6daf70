"""`actstore verify`."""

from __future__ import annotations

from dataclasses import asdict

import click

from cli.group import emit, example, json_option
from cli.stores import Place, store_argument
from cli.work import chosen_cluster, cluster_options


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

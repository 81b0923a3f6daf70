"""`actstore verify`."""

from __future__ import annotations

from dataclasses import asdict

import click

from cli.cluster import chosen_cluster, cluster_options
from cli.group import emit, example, json_option
from cli.options import Place, store_argument
from cli.progress import progress


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
    from actstore.upkeep.metadata_repair import restore_groups
    from actstore.upkeep.repair import repair as mend
    from actstore.upkeep.verify import readable_splits, verify_store

    restored = restore_groups(store) if repair else []
    opened = actstore.open(store)
    splits, _ = readable_splits(opened)
    rows = sum(split.rows for split in splits.values())
    with chosen_cluster(scheduler, local_cluster) as cluster, progress("verify", rows) as bar:
        faults = verify_store(opened, bar.update, cluster)
    unfinished = [name for name, split in splits.items() if not split.complete]
    outcomes = mend(opened, faults) if repair and faults else []
    remaining = verify_store(opened) if repair and faults else faults
    result = {
        "store": str(store),
        "rows": rows,
        "faults": [asdict(fault) for fault in faults],
        "restored": [{"file": file, "outcome": outcome} for file, outcome in restored],
        "repairs": [{**asdict(fault), "outcome": outcome} for fault, outcome in outcomes],
        "remaining": len(remaining),
        "incomplete": unfinished,
    }
    lines = [f"{file}: {said}" for file, said in restored]
    lines += [f"{fault}: {said}" for fault, said in outcomes]
    lines += [str(fault) for fault in remaining if fault not in dict(outcomes)]
    lines += [f"incomplete: {name} (repeat the command that builds it)" for name in unfinished]
    healthy = f"{store}: {rows:,} rows, every chunk is whole"
    faulty = f"{store}: {len(remaining)} faults remain" + ("" if repair else "; try --repair")
    emit(result, "\n".join([*lines, faulty if remaining else healthy]))
    if remaining:
        ctx.exit(1)

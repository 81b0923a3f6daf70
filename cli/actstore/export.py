"""`actstore export`."""

from __future__ import annotations

from pathlib import Path

import click

from cli.group import emit, example, human_bytes, json_option
from cli.options import PATH, split_option
from cli.outputs import claim
from cli.progress import progress
from cli.row_options import filter_options, where_option
from cli.stores import STORE, Place, cache_options, open_split, sources_of


@click.command(
    epilog=example(
        "actstore export imagenet.zarr tench.parquet --class n01440764",
        "actstore export imagenet.zarr all.npy --split val",
        "actstore export imagenet.zarr some.safetensors --rows rows.npy",
        "actstore export imagenet.zarr large.parquet --where 'width >= 500 and date >= 2010'",
    )
)
@click.argument("store", type=STORE)
@click.argument("output", type=PATH)
@cache_options
@split_option
@filter_options
@where_option
@json_option
def export(
    store: Place, output: Path, split: str | None, classes: tuple[str, ...], path_glob: str | None, rows: str | None,
    where: tuple[str, ...],
) -> None:  # fmt: skip
    """Write rows of STORE to OUTPUT: .npy .npz .parquet .csv .safetensors; all rows, or those of the filters.

    A file that exists is replaced only with --force.
    """
    from actstore.tables import export as write
    from actstore.tables import exported_files

    if ":/" in str(output):
        raise click.UsageError(f"OUTPUT is a file on this machine, got {output}")
    opened = open_split(store, split)
    claim(*exported_files(output, bool(opened.columns)), inputs=[*sources_of(opened), rows and Path(rows)])
    is_filtered = bool(classes or where) or path_glob is not None or rows is not None
    matching = opened.query(classes or None, path_glob, rows, where) if is_filtered else None
    count = len(opened) if matching is None else len(matching)
    with progress("export", count) as bar:
        files = write(opened, output, matching, bar.update)
    size = sum(file.stat().st_size for file in files)
    names = [str(file) for file in files]
    emit({"rows": count, "files": names, "bytes": size}, f"{count:,} rows, {human_bytes(size)}: {', '.join(names)}")

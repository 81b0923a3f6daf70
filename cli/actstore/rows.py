"""`actstore query` and `actstore export`: which rows, and their values as files of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from actstore.progress import bar
from cli.group import emit, example, human_bytes, json_option, table
from cli.options import PATH, split_option
from cli.outputs import claim
from cli.row_options import filter_options, where_option
from cli.stores import STORE, Place, cache_options, chosen_rows, open_split, sources_of, store_argument


@click.command(
    epilog=example(
        "actstore query imagenet.zarr --class n01440764 --class n01443537",
        "actstore query imagenet.zarr --glob '*tench*' --output rows.npy",
        "actstore query imagenet.zarr --rows 0:1000 --json",
        "actstore query imagenet.zarr --where 'area > 0.5' --where 'source in (web, print) and date >= 2024-01-01'",
    )
)
@store_argument
@split_option
@filter_options
@where_option
@click.option("--output", "-o", type=PATH, help="Write the row numbers: .npy, or text.")
@click.option("--limit", default=20, show_default=True, help="How many rows to print; -1 for all.")
@json_option
def query(
    store: Place, split: str | None, classes: tuple[str, ...], path_glob: str | None, rows: str | None,
    where: tuple[str, ...], output: Path | None, limit: int,
) -> None:  # fmt: skip
    """Find rows of STORE by class, id, range or columns; every filter given must hold."""
    from actstore.storage import npy_bytes, write_atomic

    opened = open_split(store, split)
    is_npy = output is not None and output.suffix == ".npy"
    claim(output, inputs=[*sources_of(opened), rows and Path(rows)])
    matching = opened.query(classes or None, path_glob, rows, where)
    if output is not None:
        text = "".join(f"{row}\n" for row in matching.tolist()).encode()
        write_atomic(output, npy_bytes(matching) if is_npy else text)
    shown = matching if limit < 0 else matching[:limit]
    names = (*opened.classes, "")  # label -1 picks the last: no class
    listed = [[row, names[opened.labels[row]], opened.ids[row]] for row in shown.tolist()]
    header, count = ["row", "class", "id"], len(matching)
    records = [dict(zip(header, line, strict=True)) for line in listed]
    more = f"\n… {count - len(shown):,} more; --limit -1 shows all" if count > len(shown) else ""
    emit({"store": str(opened.store_path), "split": opened.name, "count": count, "rows": records},
         f"{table(header, listed)}{more}\n{count:,} rows")  # fmt: skip


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
def export(store: Place, output: Path, split: str | None, rows: str | None, **filters: Any) -> None:
    """Write rows of STORE to OUTPUT: .npy .npz .parquet .csv .safetensors; all rows, or those of the filters.

    A file that exists is replaced only with --force.
    """
    from actstore.tables import export as write
    from actstore.tables import exported_files

    if ":/" in str(output):
        raise click.UsageError(f"OUTPUT is a file on this machine, got {output}")
    opened = open_split(store, split)
    claim(*exported_files(output, bool(opened.columns)), inputs=[*sources_of(opened), rows and Path(rows)])
    matching = chosen_rows(opened, rows=rows, **filters)
    count = len(opened) if matching is None else len(matching)
    with bar("export", count, "rows", True) as done:
        files = write(opened, output, matching, done.update)
    size = sum(file.stat().st_size for file in files)
    names = [str(file) for file in files]
    emit({"rows": count, "files": names, "bytes": size}, f"{count:,} rows, {human_bytes(size)}: {', '.join(names)}")

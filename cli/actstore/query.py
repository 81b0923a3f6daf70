"""`actstore query`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.group import emit, example, json_option, table
from cli.options import filter_options, open_split, split_option, store_argument, where_option

if TYPE_CHECKING:
    from actstore.storage.place import Place


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
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write the row numbers: .npy, or text.")
@click.option("--limit", default=20, show_default=True, help="How many rows to print; -1 for all.")
@json_option
def query(
    store: Place, split: str | None, classes: tuple[str, ...], path_glob: str | None, rows: str | None,
    where: tuple[str, ...], output: Path | None, limit: int, as_json: bool,
) -> None:  # fmt: skip
    """Find rows of STORE by class, id, range or columns; every filter given must hold."""
    from actstore.storage.atomic_file import npy_bytes, write_atomic
    from cli.filekinds import ROW_ARRAY, ROWS
    from cli.outputs import claim, sources_of

    opened = open_split(store, split)
    if output is not None:
        read = [*sources_of(opened), *([Path(rows)] if rows else [])]
        claim((output, ROW_ARRAY if output.suffix == ".npy" else ROWS), inputs=read)
    found = opened.query(classes or None, path_glob, rows, where)
    if output is not None:
        text = "".join(f"{row}\n" for row in found.tolist()).encode()
        write_atomic(output, npy_bytes(found) if output.suffix == ".npy" else text)
    shown = found if limit < 0 else found[:limit]
    names = (*opened.classes, "")  # label -1 picks the last: no class
    listed = [[row, names[opened.labels[row]], opened.ids[row]] for row in shown.tolist()]
    result = {
        "store": str(store),
        "split": opened.name,
        "count": len(found),
        "rows": [{"row": row, "class": name, "id": key} for row, name, key in listed],
    }
    more = f"\n… {len(found) - len(shown):,} more; --limit -1 shows all" if len(found) > len(shown) else ""
    emit(result, as_json, lambda: f"{table(['row', 'class', 'id'], listed)}{more}\n{len(found):,} rows")

"""`actstore import` and `actstore append`: rows from array files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.group import emit, example, human_bytes, json_option
from cli.options import STORE, file_options, layout_options
from cli.progress import SplitBars

if TYPE_CHECKING:
    from actstore.places import Place

ARRAY = click.argument("array_file", metavar="ARRAY", type=click.Path(path_type=Path))


@click.command(
    "import",
    epilog=example(
        "actstore import features.npy imagenet.zarr --labels labels.npy --classes names.txt",
        "actstore import activations.npz mini.zarr      # every K with a K_labels becomes a split",
        "actstore import features.h5 x.zarr --array pool5 --split val",
    ),
)
@ARRAY
@click.argument("store", required=False, type=STORE)
@file_options
@layout_options
@json_option
def import_(array_file: Path, store: Place | None, restart: bool, as_json: bool, **given: Any) -> None:
    """Make STORE from ARRAY (.npy .npz .h5 .parquet .safetensors), never loading it whole.

    STORE defaults to the name of ARRAY with .zarr. Interrupted, the same command resumes.
    """
    from actstore.importer import import_file

    target = store or Path(f"{array_file.stem}.zarr")
    layout = {key: given.pop(key) for key in ("dtype", "chunk_rows", "codec", "shard_inner_rows")}
    begin, bars = time.perf_counter(), SplitBars("import")
    try:
        made = import_file(_request(array_file, given), target, bars, restart, **layout)
    finally:
        bars.close()
    seconds = time.perf_counter() - begin
    rows = {name: split.rows for name, split in made.splits.items()}
    size = sum(rows.values()) * made.spec.row_bytes
    result = {"store": str(target), "rows": rows, "dim": made.dim, "classes": len(made.classes), "seconds": seconds}
    emit(
        result,
        as_json,
        lambda: (
            f"{target}: {_counts(rows)}, dim {made.dim}, {len(made.classes)} classes, "
            f"{human_bytes(size)} in {seconds:.1f} s"
        ),
    )


@click.command(
    epilog=example("actstore append more.npy imagenet.zarr --labels more_labels.txt --split train"),
)
@ARRAY
@click.argument("store", type=STORE)
@file_options
@click.option("--again", is_flag=True, help="Add the rows though a file with the same content was added before.")
@json_option
def append(array_file: Path, store: Place, restart: bool, again: bool, as_json: bool, **given: Any) -> None:
    """Add the rows of ARRAY to a finished split; labels that are new names become new classes.

    Readers see the old rows until the new ones are all there. A file whose content was added before, under whatever
    name, adds nothing.
    """
    from actstore.importer import append_file

    bars = SplitBars("append")
    try:
        added = append_file(_request(array_file, given), store, bars, restart, again)
    finally:
        bars.close()
    emit(
        {"store": str(store), "rows_added": added},
        as_json,
        lambda: (
            f"{store}: {added:,} rows added"
            if added
            else f"{store}: these rows are there already, nothing added (--again adds them once more)"
        ),
    )


def _request(array_file: Path, given: dict[str, Any]) -> Any:
    from actstore.importer import ImportRequest

    return ImportRequest(array_file, **given)


def _counts(rows: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,} rows" for name, count in rows.items())
